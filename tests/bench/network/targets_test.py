#!/usr/bin/env python3
"""Tests targets.py with invented times."""
import unittest

import targets
from networks import Layout


def time_of(hook, median_ms, **more):
    return {"hook": hook, "bucket_bytes": targets.BUCKET, "buckets": 1, "median_ms": median_ms, "payload_bytes": 0} | more


Target = targets.Target
ROW = targets.Row("int8", 2, "1", allreduce=Target(3.6), bf16=Target(1.9), wire=Target(.90, .95))


class Checks(unittest.TestCase):
    def verdicts(self, row, times, built=("int8",)):
        return [(check.measure, check.reached, check.verdict) for check in targets.checks(row, times, built)]

    def test_each_ratio_is_checked_by_itself(self):
        # 6656000 bytes (int8_b128 of a bucket) take 55.68 ms with their headers.
        times = [time_of("allreduce", 222), time_of("bf16_compress", 114), time_of("int8", 60, payload_bytes=6656000)]
        self.assertEqual(self.verdicts(ROW, times), [
            ("x allreduce", "3.70", "holds"), ("x bf16_compress", "1.90", "holds"), ("of the wire limit", "92.8%", "holds")])
        times[2]["median_ms"] = 62
        self.assertEqual(self.verdicts(ROW, times), [
            ("x allreduce", "3.58", "MISSED"), ("x bf16_compress", "1.84", "MISSED"), ("of the wire limit", "89.8%", "MISSED")])

    def test_a_goal_is_said_and_not_judged(self):
        times = [time_of("allreduce", 222), time_of("bf16_compress", 114), time_of("int8", 60, payload_bytes=6656000)]
        self.assertEqual([check.target for check in targets.checks(ROW, times, ["int8"])], ["3.60", "1.90", "90.0% (goal 95.0%)"])

    def test_only_times_of_the_same_case_count(self):
        times = [time_of("allreduce", 222), time_of("bf16_compress", 120), time_of("int8", 60, buckets=4)]
        self.assertIsNone(targets.checks(ROW, times, ["int8"]))

    def test_the_worst_size_counts(self):
        row = targets.Row("int8", 2, "1", sizes=(1024, 2048), allreduce=Target(1))
        times = [time_of(hook, ms, bucket_bytes=size) for hook, size, ms in (
            ("allreduce", 1024, 2), ("allreduce", 2048, 2), ("bf16_compress", 1024, 2), ("bf16_compress", 2048, 2),
            ("int8", 1024, 1), ("int8", 2048, 2.5))]
        self.assertEqual(self.verdicts(row, times), [("x allreduce", "0.80", "MISSED")])

    def test_a_hook_that_does_not_exist_is_not_built(self):
        times = [time_of("allreduce", 222), time_of("bf16_compress", 120)]
        self.assertEqual({verdict for _, _, verdict in self.verdicts(ROW, times, built=["allreduce"])}, {"not built"})
        self.assertIsNone(targets.checks(ROW, [], ["allreduce"]))  # This case was not requested.


    def test_beside_int8_where_the_row_says_so(self):
        row = targets.Row("power_sgd", 2, "1", int8=Target(2.5))
        times = [time_of("int8", 60), time_of("power_sgd", 20)]
        self.assertEqual(self.verdicts(row, times, ["int8", "power_sgd"]), [("x int8", "3.00", "holds")])
        self.assertIsNone(targets.checks(row, times[1:], ["power_sgd"]))


    def test_auto_is_beside_the_fastest_of_its_candidates(self):
        row = targets.Row("auto", 2, "1", candidates=Target(1 / 1.03), wide=Target(1 / 1.02))
        hooks = ["allreduce", "fp32", "bf16_compress", "int8", "auto"]

        def of(*milliseconds):
            return self.verdicts(row, [time_of(hook, ms) for hook, ms in zip(hooks, milliseconds)], hooks)

        best, wide = "x the fastest of its candidates", "x the fastest of 32 and 16 bits"
        self.assertEqual(of(222, 230, 114, 60, 61), [(best, "0.984", "holds"), (wide, "1.869", "holds")])
        self.assertEqual(of(222, 230, 114, 60, 62), [(best, "0.968", "MISSED"), (wide, "1.839", "holds")])
        self.assertEqual(of(100, 120, 114, 130, 102.5), [(best, "0.976", "holds"), (wide, "0.976", "MISSED")])
        self.assertEqual(of(120, 100, 114, 130, 101), [(best, "0.990", "holds"), (wide, "0.990", "holds")])
        self.assertIsNone(targets.checks(row, [time_of("auto", 1)], hooks), "its candidates were not measured")


class Evaluate(unittest.TestCase):
    def test_counts_the_rows_that_were_not_asked_for(self):
        times = [time_of("allreduce", 300), time_of("bf16_compress", 150), time_of("int8", 70)]
        found, left_out = targets.evaluate({(Layout(2, 1), "1"): times}, ["int8"], ["int8"])
        self.assertEqual(len(found), 3)  # One bucket at 1 Gbit/s; four buckets, and small ones, were not measured.
        self.assertEqual(left_out, len(targets.ROWS) - 1)

    def test_nodes_of_several_ranks_have_rows_of_their_own(self):
        times = [time_of("allreduce", 560), time_of("bf16_compress", 290), time_of("int8", 100)]
        found, left_out = targets.evaluate({(Layout(2, 4), "1"): times}, ["int8"], ["int8"])
        self.assertEqual([(check.case, check.measure, check.reached, check.target, check.verdict) for check in found], [
            ("int8, 1 Gbit/s, 2 nodes of 4 ranks, 1 x 25 MiB", "x allreduce", "5.60", "4.00 (goal 5.50)", "holds"),
            ("int8, 1 Gbit/s, 2 nodes of 4 ranks, 1 x 25 MiB", "x bf16_compress", "2.90", "2.50 (goal 2.90)", "holds")])
        self.assertEqual(left_out, len(targets.ROWS) - 1)

    def test_rows_of_hooks_that_are_not_built_are_no_rows_left_out(self):
        times = [time_of("allreduce", 300), time_of("bf16_compress", 150)]
        found, left_out = targets.evaluate({(Layout(4, 1), "1"): times}, ["allreduce"], ["int4"])
        self.assertEqual([check.verdict for check in found], ["not built"] * 3)
        self.assertEqual(left_out, len(targets.ROWS) - 1)


class Rows(unittest.TestCase):
    def test_goals_are_above_what_must_be_reached(self):
        found = [target for row in targets.ROWS for target in vars(row).values() if isinstance(target, Target) and target.goal]
        self.assertGreater(len(found), 20)
        for target in found:
            self.assertGreater(target.goal, target.least)

    def test_what_the_document_says_was_reached_would_hold(self):
        """Checks the tables of the document: ms of allreduce, bf16_compress and each hook, by layout, rate and
        buckets."""
        for layout, rate, buckets, allreduce, bf16, others in (
                (Layout(2, 1), "1", 1, 221, 117, {"int8": 61}), (Layout(2, 1), "1", 4, 889, 453, {"int8": 230}),
                (Layout(4, 1), "1", 1, 339, 180, {"int8": 90, "int4": 52}), (Layout(4, 1), "1", 4, 1344, 686, {"int8": 352, "int4": 198}),
                (Layout(8, 1), "1", 1, 401, 224, {"int8": 125}), (Layout(2, 1), "10", 1, 42, 29, {"int8": 15}),
                (Layout(4, 1), "10", 1, 91, 60, {"int8": 30}), (Layout(8, 1), "10", 1, 198, 138, {"int8": 71}),
                (Layout(2, 1), "open", 1, 35, 24, {"int8": 12}), (Layout(4, 1), "open", 1, 78, 56, {"int8": 30}),
                (Layout(2, 2), "1", 1, 343, 193, {"int8": 74}), (Layout(2, 4), "1", 1, 423, 263, {"int8": 99, "int4": 73}),
                (Layout(4, 2), "1", 1, 403, 255, {"int8": 119}), (Layout(1, 2), "open", 1, 27, 34, {"fp32": 12}),
                (Layout(1, 4), "open", 1, 67, 75, {"fp32": 25}), (Layout(1, 8), "open", 1, 154, 157, {"fp32": 48})):
            nodes = layout.nodes
            bits = {"int8": 8.125, "int4": 4.5, "fp32": 32}
            times = [time_of(hook, ms, buckets=buckets, payload_bytes=buckets * targets.BUCKET * bits.get(hook, 32) / 32 * 2 * (nodes - 1) / nodes)
                     for hook, ms in {"allreduce": allreduce, "bf16_compress": bf16, **others}.items()]
            rows = [row for row in targets.ROWS if row.layout == layout and row.rate == rate and row.buckets == buckets and
                    row.hook in others and row.sizes == (targets.BUCKET,)]
            self.assertEqual(len(rows), len(others))
            for row in rows:
                self.assertEqual([check for check in targets.checks(row, times, list(others)) if not targets.holds(check)], [])

    def test_a_whole_run_measures_the_layouts_of_all_its_rows(self):
        hooks = {row.hook for row in targets.ROWS}
        for row in targets.ROWS:
            self.assertIn(row.layout, targets.layouts(row.rate, hooks))
        self.assertEqual(targets.layouts("1", ["int8"]),
                         [Layout(2, 1), Layout(4, 1), Layout(8, 1), Layout(2, 4), Layout(2, 2), Layout(4, 2)])

    def test_a_run_of_some_hooks_leaves_out_what_only_others_need(self):
        self.assertEqual(targets.layouts("open", ["int8"]), [Layout(2, 1), Layout(4, 1), Layout(8, 1)])
        self.assertEqual(targets.layouts("open", ["fp32"])[3:], [Layout(1, 2), Layout(1, 4), Layout(1, 8)])

    def test_the_wire_limit_is_asked_of_single_ranks_only(self):
        self.assertEqual({row.ranks_per_node for row in targets.ROWS if row.wire}, {1})

    def test_auto_has_some_wherever_int8_or_fp32_has_with_several_ranks(self):
        layouts = {(row.layout, row.rate) for row in targets.ROWS if row.hook == "auto"}
        for row in targets.ROWS:
            if row.ranks_per_node > 1 and row.hook in ("int8", "fp32"):
                self.assertIn((row.layout, row.rate), layouts)


class WireLimit(unittest.TestCase):
    def test_counts_headers_of_full_packets(self):
        self.assertAlmostEqual(targets.wire_seconds(1448, "1"), 1514 * 8 / 1e9)


if __name__ == "__main__":
    unittest.main()

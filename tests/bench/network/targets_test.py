#!/usr/bin/env python3
"""Tests targets.py with times made up."""
import unittest

import targets


def time_of(hook, median_ms, **more):
    return {"hook": hook, "bucket_bytes": targets.BUCKET, "buckets": 1, "median_ms": median_ms, "payload_bytes": 0} | more


ROW = targets.Row("int8", 2, "1", fp32=3.6, bf16=1.9, wire=.90)


class Checks(unittest.TestCase):
    def verdicts(self, row, times, built=("int8",)):
        return [(check.measure, check.reached, check.verdict) for check in targets.checks(row, times, built)]

    def test_each_ratio_is_checked_by_itself(self):
        # 6656000 bytes (int8_b128 of a bucket) take 55.68 ms with their headers.
        times = [time_of("allreduce", 222), time_of("bf16_compress", 114), time_of("int8", 60, payload_bytes=6656000)]
        self.assertEqual(self.verdicts(ROW, times), [
            ("x fp32", "3.70", "holds"), ("x bf16", "1.90", "holds"), ("of the wire limit", "92.8%", "holds")])
        times[2]["median_ms"] = 62
        self.assertEqual(self.verdicts(ROW, times), [
            ("x fp32", "3.58", "MISSED"), ("x bf16", "1.84", "MISSED"), ("of the wire limit", "89.8%", "MISSED")])

    def test_only_times_of_the_same_case_count(self):
        times = [time_of("allreduce", 222), time_of("bf16_compress", 120), time_of("int8", 60, buckets=4)]
        self.assertIsNone(targets.checks(ROW, times, ["int8"]))

    def test_the_worst_size_counts(self):
        row = targets.Row("int8", 2, "1", sizes=(1024, 2048), fp32=1)
        times = [time_of(hook, ms, bucket_bytes=size) for hook, size, ms in (
            ("allreduce", 1024, 2), ("allreduce", 2048, 2), ("bf16_compress", 1024, 2), ("bf16_compress", 2048, 2),
            ("int8", 1024, 1), ("int8", 2048, 2.5))]
        self.assertEqual(self.verdicts(row, times), [("x fp32", "0.80", "MISSED")])

    def test_a_hook_that_does_not_exist_is_not_built(self):
        times = [time_of("allreduce", 222), time_of("bf16_compress", 120)]
        self.assertEqual({verdict for _, _, verdict in self.verdicts(ROW, times, built=["allreduce"])}, {"not built"})
        self.assertIsNone(targets.checks(ROW, [], ["allreduce"]))  # Nobody asked for this case.


class Evaluate(unittest.TestCase):
    def test_counts_the_rows_that_were_not_asked_for(self):
        times = [time_of("allreduce", 300), time_of("bf16_compress", 150), time_of("int8", 70)]
        found, left_out = targets.evaluate({(2, "1"): times}, ["int8"], ["int8"])
        self.assertEqual(len(found), 3)  # One bucket at 1 Gbit/s; four, and small ones, were not measured.
        self.assertEqual(left_out, len(targets.ROWS) - 1)

    def test_rows_of_hooks_that_are_not_built_are_no_rows_left_out(self):
        times = [time_of("allreduce", 300), time_of("bf16_compress", 150)]
        found, left_out = targets.evaluate({(4, "1"): times}, ["allreduce"], ["int4"])
        self.assertEqual([check.verdict for check in found], ["not built"] * 3)
        self.assertEqual(left_out, len(targets.ROWS) - 1)


class WireLimit(unittest.TestCase):
    def test_counts_headers_of_full_packets(self):
        self.assertAlmostEqual(targets.wire_seconds(1448, "1"), 1514 * 8 / 1e9)


if __name__ == "__main__":
    unittest.main()

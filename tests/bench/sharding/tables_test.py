#!/usr/bin/env python3
"""Tests tables.py and ways.py with invented measurements."""
import argparse
import pathlib
import sys
import unittest

sys.path.append(str(pathlib.Path(__file__).resolve().parents[1] / "network"))
import tables  # noqa: E402 -- finds modules by the line above
import ways  # noqa: E402
from networks import Layout  # noqa: E402
from tables import Measured  # noqa: E402
from ways import SIZES, WAYS  # noqa: E402

ARGUMENTS = argparse.Namespace(bin=pathlib.Path("bin"), gradient_as_bucket_view=True)


class Formula(unittest.TestCase):
    def bytes_of(self, way, *layout, **options):
        return WAYS[way].bytes_per_parameter(Layout(*layout), **options)

    def test_the_ranks_of_a_node_divide_the_moments(self):
        self.assertEqual([self.bytes_of("node", 2, ranks) for ranks in (2, 4, 8)], [12, 10, 9])
        self.assertEqual(self.bytes_of("off", 2, 4), 16)

    def test_all_ranks_divide_the_moments(self):
        self.assertEqual([self.bytes_of(way, 2, 4) for way in ("zero", "all_fp32", "all_int8", "fsdp2")], [9, 9, 9.5, 2])
        self.assertEqual([self.bytes_of(way, 2, 4) for way in ("all_fp32_copies", "all_int8_copies")], [10, 11])

    def test_without_views_buckets_hold_the_gradients_once_more(self):
        self.assertEqual([self.bytes_of(way, 1, 8, has_views=False) for way in ("ddp", "node", "fsdp2")], [20, 13, 2])

    def test_a_node_with_one_rank_has_no_shards(self):
        self.assertFalse(WAYS["node"].can_run(Layout(4, 1)))
        self.assertTrue(WAYS["zero"].can_run(Layout(4, 1)))


class Sizes(unittest.TestCase):
    def test_have_the_parameters_of_their_names(self):
        self.assertEqual({name: round(size.parameters / 1e5) / 10 for name, size in SIZES.items()},
                         {"10.7M": 10.7, "gpt2": 123.7})

    def test_narrow_models_have_few_parameters(self):
        for size in SIZES.values():
            self.assertLess(size.narrow().parameters, .03 * size.parameters)

    def test_batches_are_those_of_all_ranks(self):
        self.assertIn("--batch_size=16", SIZES["10.7M"].flags(8))


class Commands(unittest.TestCase):
    def command(self, way, **options):
        arguments = argparse.Namespace(**vars(ARGUMENTS) | options)
        return WAYS[way].command(arguments, SIZES["10.7M"], Layout(1, 2))

    def test_all_ways_train_the_same_model(self):
        for way in WAYS:
            self.assertLess({"--layers=6", "--width=384", "--batch_size=4"}, set(self.command(way)))

    def test_ways_differ_in_their_flags(self):
        self.assertLess({"bin/narrowcast-train", "--shard_optimizer=node", "--hook=none"}, set(self.command("node")))
        self.assertIn("--kind=zero", self.command("zero"))
        self.assertEqual(len({tuple(self.command(way)) for way in WAYS}), len(WAYS))

    def test_views_are_a_choice(self):
        for way in ("off", "ddp"):
            self.assertIn("--gradient_as_bucket_view", self.command(way))
            self.assertNotIn("--gradient_as_bucket_view", self.command(way, gradient_as_bucket_view=False))

    def test_defaults_need_no_flag_that_may_be_missing(self):
        self.assertFalse(any("--shard_optimizer=all" in WAYS[way].flags for way in ways.DEFAULTS))


class Tables(unittest.TestCase):
    FOUND = {"off": Measured([2, 2, 9], 3e8, 16.8), "node": Measured([2.2], 2e8, 13.5), "ddp": Measured([4], 6e8, 18)}

    def test_the_largest_rank_counts(self):
        self.assertEqual(tables.per_parameter({0: 500, 1: 700}, {0: 100, 1: 150}, 10), 55)

    def test_a_row_compares_with_the_formula_and_with_two_ways(self):
        rows = tables.rows(self.FOUND, Layout(1, 2), True)
        self.assertEqual(rows[1], ["off", "3", "2.000", "2.00", "1.00", "16.80", "16.00", "1.05", "300"])
        self.assertEqual(rows[2], ["node", "1", "2.200", "1.82", "0.91", "13.50", "12.00", "1.12", "200"])
        self.assertEqual({len(row) for row in rows}, {9})

    def test_no_speed_is_relative_to_a_way_that_was_not_measured(self):
        rows = tables.rows({"off": self.FOUND["off"]}, Layout(1, 2), True)
        self.assertEqual(rows[1][3:5], ["", "1.00"])

    def test_checks_are_of_narrowcast_alone(self):
        checks = list(tables.checks("10.7M", self.FOUND, Layout(1, 2), True))
        self.assertEqual([(check.case, check.measure, check.reached, check.verdict) for check in checks],
                         [("off, 10.7M, 1 node of 2 ranks", "memory / formula", "1.05", "holds"),
                          ("node, 10.7M, 1 node of 2 ranks", "memory / formula", "1.12", "MISSED"),
                          ("node, 10.7M, 1 node of 2 ranks", "seconds / off", "1.10", "MISSED")])


if __name__ == "__main__":
    unittest.main()

#!/usr/bin/env python3
"""Tests training_targets.py with invented measurements."""
import unittest

import networks
import training_targets
import variants

COSTS = {"bf16_compress": (2.0, 20_000), "none": (4.0, 40_000), "power_sgd rank 4": (.25, 700),
         "DiLoCo every 30, int4_b32": (.22, 200), "DiLoCo every 100, int4_b32": (.21, 99)}


def curves(*losses):
    return [[(10, 5.0), (20, loss)] for loss in losses]


def told(costs, losses, rate="0.1", layout=networks.Layout(2, 1)):
    return [(check.case, check.measure, check.reached, check.target, check.verdict)
            for check in training_targets.checks(costs, losses, layout, rate)]


class Checks(unittest.TestCase):
    def test_of_costs_are_for_their_network(self):
        self.assertEqual(told(COSTS, {}), [
            ("power_sgd rank 4", "x bf16_compress", "8.00", ">= 8", "holds"),
            ("DiLoCo every 30, int4_b32", "x bf16_compress", "9.09", ">= 10", "MISSED"),
            ("DiLoCo every 100, int4_b32", "bytes of none", "1/404", "<= 1/400", "holds")])
        self.assertEqual(told(COSTS, {}, rate="1"), [])
        self.assertEqual(told(COSTS, {}, layout=networks.Layout(2, 2)), [])
        self.assertEqual([verdict for *_, verdict in told(COSTS | {"DiLoCo every 100, int4_b32": (.21, 101)}, {})],
                         ["holds", "MISSED", "MISSED"])

    def test_of_trainings_in_python_are_for_their_network(self):
        best = {"python:bf16_compress": ("25", .52), "python:narrowcast.int8": ("6", .4), "none": ("25", 1.0)}
        network = networks.Layout(2, 1)
        self.assertEqual([(check.case, check.measure, check.reached, check.target, check.verdict)
                          for check in training_targets.checks_of_python(best, network, "1")],
                         [("python:narrowcast.int8", "x python:bf16_compress", "1.30", ">= 1.3", "holds")])
        for other, rate in ((networks.Layout(4, 1), "1"), (network, "10")):
            self.assertEqual(training_targets.checks_of_python(best, other, rate), [])
        slower = best | {"python:narrowcast.int8": ("6", .41)}
        self.assertEqual([check.verdict for check in training_targets.checks_of_python(slower, network, "1")], ["MISSED"])

    def test_of_losses_are_means_of_paired_seeds(self):
        name = "DiLoCo every 30, fp32"
        self.assertEqual(told({}, {"none": curves(2.0, 3.0), name: curves(2.03, 3.0)}), [
            (name, "loss above none", "+0.015 (s.e. 0.015, 2 seeds)", "<= 0.02", "holds")])
        self.assertEqual(told({}, {"none": curves(2.0), name: curves(2.021)}), [
            (name, "loss above none", "+0.021 (one seed)", "<= 0.02", "MISSED")])

    def test_noise_is_allowed_for_where_it_is_said(self):
        name, other = "power_sgd rank 4 alternate", "power_sgd rank 4"
        limit = "<= 0 + 2 s.e."
        self.assertEqual(told({}, {other: curves(2, 2, 2), name: curves(2.02, 2.01, 1.99)})[0][2:], (
            "+0.007 (s.e. 0.009, 3 seeds)", limit, "holds"))
        self.assertEqual(told({}, {other: curves(2, 2, 2), name: curves(2.02, 2.01, 2.03)})[0][2:], (
            "+0.020 (s.e. 0.006, 3 seeds)", limit, "MISSED"))

    def test_what_was_not_measured_has_none(self):
        self.assertEqual(told({"none": (1, 1)}, {"none": curves(2.0)}), [])

    def test_name_ways_that_there_are(self):
        names = {way.name for way in variants.variants(1)}
        for target in training_targets.COSTS + training_targets.LOSSES:
            self.assertLessEqual({target.way, target.other}, names)


if __name__ == "__main__":
    unittest.main()

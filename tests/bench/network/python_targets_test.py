#!/usr/bin/env python3
"""Tests python_targets.py with invented times."""
import unittest

import python_targets
from networks import Layout

TIMES = {"C++ int8": 60., "allreduce": 240., "bf16_compress": 120., "narrowcast.int8": 62., "operator.int8_b128": 62.5}


class PythonTargets(unittest.TestCase):
    def test_a_hook_is_compared_with_pytorchs_and_with_itself_in_cpp(self):
        rows = {row[0]: row[1:] for row in python_targets.rows(TIMES)}
        self.assertEqual(rows["narrowcast.int8"], ["62.0", "3.87", "1.94", "0.97"])
        self.assertEqual(rows["operator.int8_b128"], ["62.5", "3.84", "1.92", "0.96"])

    def test_five_percent_behind_cpp_are_allowed(self):
        for milliseconds, verdict in ((62.9, "holds"), (63.1, "MISSED")):
            for way in ("narrowcast.int8", "operator.int8_b128"):
                found = python_targets.checks(TIMES | {way: milliseconds}, Layout(2, 1), "open")
                of_way = [(check.measure, check.verdict) for check in found if check.case.startswith(f"{way}, ")]
                self.assertEqual(of_way, [("x the hook in C++", verdict)])

    def test_a_network_with_a_target_is_also_compared_with_bf16(self):
        found = python_targets.checks(TIMES | {"bf16_compress": 117.}, Layout(4, 1), "1")
        self.assertEqual([(check.reached, check.target, check.verdict) for check in found],
                         [("0.97", ">= 0.95", "holds"), ("0.96", ">= 0.95", "holds"), ("1.89", ">= 1.90", "MISSED")])

    def test_ways_without_a_run_in_cpp_have_no_target(self):
        times = {"allreduce": 2., "bf16_compress": 1., "narrowcast.int8": 1., "operator.int8_b128": 1., "operator.fp32": 1.}
        self.assertEqual(python_targets.checks(times, Layout(2, 1), "1"), [])


if __name__ == "__main__":
    unittest.main()

#!/usr/bin/env python3
"""Tests step_times.py with invented metrics."""
import json
import unittest

import program
import step_times
import text_table


def metrics(*seconds):
    events = [{"event": "start"}]
    events += [{"event": "step", "step": i + 1, "seconds": so_far} for i, so_far in enumerate(seconds)]
    return "".join(json.dumps(event) + "\n" for event in events + [{"event": "end", "seconds": seconds[-1]}])


class SecondsOfSteps(unittest.TestCase):
    def test_are_the_differences_of_what_was_counted_so_far(self):
        self.assertEqual(step_times.seconds_of_steps(metrics(4, 5, 7, 7.5), steps=4, warmup=0), [4, 1, 2, .5])

    def test_the_first_ones_do_not_count(self):
        self.assertEqual(step_times.seconds_of_steps(metrics(4, 5, 7, 7.5), steps=4, warmup=2), [2, .5])

    def test_of_several_steps_with_one_line_are_their_mean(self):
        lines = "".join(json.dumps({"event": "step", "step": step, "seconds": so_far}) + "\n" for step, so_far in
                        ((2, 5), (4, 8), (6, 9)))
        self.assertEqual(step_times.seconds_of_steps(lines, steps=6, warmup=2, every=2), [1.5, .5])
        with self.assertRaisesRegex(program.Failed, "has 3 of 4 steps"):
            step_times.seconds_of_steps(lines, steps=8, warmup=2, every=2)

    def test_a_step_without_a_line_of_its_own_is_an_error(self):
        with self.assertRaisesRegex(program.Failed, "has 4 of 5 steps"):
            step_times.seconds_of_steps(metrics(1, 2, 3, 4), steps=5, warmup=1)


class Table(unittest.TestCase):
    def test_compares_medians_with_no_hook_and_with_bf16(self):
        rows = step_times.rows({"none": [4, 1, 4], "bf16_compress": [2, 2, 9], "int8": [.5, 1.5]})
        self.assertEqual(rows[1:], [["none", "3", "4.000", "1.00", "0.50"], ["bf16_compress", "3", "2.000", "2.00", "1.00"],
                                    ["int8", "2", "1.000", "4.00", "2.00"]])

    def test_names_the_best_buckets_of_each_hook(self):
        times = {"25": {"int8": [4, 4, 9], "none": [5]}, "3": {"int8": [2, 2, 1], "none": [6]}}
        self.assertEqual(step_times.best(times), {"int8": ("3", 2), "none": ("25", 5)})

    def test_compares_the_chosen_buckets_with_the_best(self):
        rows = step_times.rows_of_choice({"25": {"int8": [4, 4, 9]}, "auto": {"int8": [2, 2.1, 3]}, "3": {"int8": [2, 2, 1]}})
        self.assertEqual(rows[1:], [["int8", "3", "2.000", "2.100", "+5.0%"]])

    def test_the_chosen_buckets_are_at_most_three_percent_slower(self):
        seconds = {"auto": {"int8": [2.05], "int4": [2.07], "noop": [1.1]}, "3": {"int8": [2], "int4": [2], "noop": [1]},
                   "25": {"int8": [4], "int4": [3], "noop": [1.2]}}
        self.assertEqual([(check.case, check.reached, check.verdict) for check in step_times.checks_of_choice(seconds)],
                         [("int8", "+2.5%", "holds"), ("int4", "+3.5%", "MISSED")])
        self.assertEqual(step_times.noise_text(seconds),
                         "the run's noise: with noop, which sends nothing, sizes differ by 20.0%")
        for of_cap in seconds.values():
            del of_cap["noop"]
        self.assertIn("is not known", step_times.noise_text(seconds))

    def test_columns_are_aligned(self):
        self.assertEqual(text_table.aligned([["hook", "s", ""], ["int8", "12", "ok"]], "lrl"), "hook   s\nint8  12  ok")


if __name__ == "__main__":
    unittest.main()

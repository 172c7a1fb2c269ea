#!/usr/bin/env python3
"""Tests variants.py with invented metrics."""
import json
import unittest

import program
import variants


def metrics(*events):
    return "".join(json.dumps(event) + "\n" for event in events)


def step(number, seconds, sent):
    return {"event": "step", "step": number, "seconds": seconds, "payload_bytes_sent": sent}


class Variants(unittest.TestCase):
    def test_names_are_told_apart(self):
        names = [variant.name for variant in variants.variants(5)]
        self.assertEqual(len(names), len(set(names)))
        self.assertEqual([variant.name for variant in variants.variants(5, ["int8", "none"])], ["int8", "none"])
        with self.assertRaisesRegex(program.WrongUse, "'int9' is not one of none; bf16_compress; "):
            variants.variants(5, ["int9"])

    def test_others_are_there_by_name_only(self):
        name = "DiLoCo every 30, fp32, rate 0.5, momentum 0.8"
        self.assertIn("--outer_learning_rate=0.5", variants.variants(5, [name])[0].flags)
        self.assertNotIn(name, [variant.name for variant in variants.variants(5)])

    def test_all_begin_with_so_many_plain_steps(self):
        flags = {variant.name: variant.flags for variant in variants.variants(7)}
        self.assertIn("--power_sgd_start=7", flags["power_sgd rank 2"])
        self.assertIn("--outer_warmup=7", flags["average every 10"])

    def test_end_with_whole_rounds(self):
        def ways(*names):
            return variants.variants(20, names)
        self.assertEqual(variants.whole_rounds(ways("int8"), 20, 580), 600)
        self.assertEqual(variants.whole_rounds(ways("int8", "average every 10"), 4, 11), 24)
        self.assertEqual(variants.whole_rounds(variants.variants(20), 20, 580), 620)
        self.assertEqual(variants.whole_rounds(ways("DiLoCo every 30, fp32"), 4, -3), 34)


class Costs(unittest.TestCase):
    def test_are_means_over_whole_rounds(self):
        text = metrics({"event": "start"}, step(1, 4, 100), step(2, 5, 100), step(3, 9, 700))
        self.assertEqual(variants.cost_of_steps(text, 1, 3), (2.5, 300))
        with self.assertRaisesRegex(program.Failed, "lacks step 1 or 4"):
            variants.cost_of_steps(text, 1, 4)

    def test_leave_out_what_stays_in_a_node(self):
        def outer(number, payload):
            return step(number, number, 1000 * number) | {"outer_payload_bytes_sent": payload}
        self.assertEqual(variants.cost_of_steps(metrics(outer(1, 5), outer(3, 45)), 1, 3), (1, 20))


class Losses(unittest.TestCase):
    CURVE = [(10, 4.0), (20, 3.0), (40, 2.0)]

    def test_are_those_of_evaluations(self):
        text = metrics(step(1, 1, 1), {"event": "evaluation", "step": 10, "validation_loss": 4.0, "seconds": 3})
        self.assertEqual(variants.losses(text), [(10, 4.0)])

    def test_between_evaluations_are_on_the_line(self):
        self.assertEqual([variants.loss_after(self.CURVE, steps) for steps in (9, 10, 15, 30, 40, 50)],
                         [None, 4.0, 3.5, 2.5, 2.0, 2.0])

    def test_are_told_after_equal_steps_and_after_equal_time(self):
        costs = {"slow": (1.0, 4e6), "fast": (0.25, 1e3)}
        curves = {"slow": [self.CURVE, [(10, 6.0), (40, 4.0)]], "fast": [[(10, 5.0), (40, 3.5)]]}
        self.assertEqual(variants.rows(costs, curves, "slow"), [
            ["", "s per step", "x slow", "kB per step", "loss, 40 steps", "loss, 10 s"],
            ["slow", "1.000", "1.0", "4000.0", "3.000", "5.000"],
            ["fast", "0.250", "4.0", "1.0", "3.500", "3.500"]])
        self.assertEqual(variants.rows(costs, {}, "slow")[2], ["fast", "0.250", "4.0", "1.0"])
        self.assertEqual(variants.rows({}, curves, "slow"), [["", "loss, 40 steps"], ["slow", "3.000"], ["fast", "3.500"]])


if __name__ == "__main__":
    unittest.main(verbosity=2)

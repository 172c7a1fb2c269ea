#!/usr/bin/env python3
"""Tests comparison.py with trainings that only write what a training writes."""
import argparse
import os
import pathlib
import sys
import unittest

sys.path.append(str(pathlib.Path(__file__).resolve().parents[1] / "network"))
import comparison  # noqa: E402 -- finds modules by the line above
from comparison import MALLOC_THRESHOLD, Comparison, Impossible, Trainings  # noqa: E402
from networks import Layout  # noqa: E402
from program import network_namespace  # noqa: E402
from ways import SIZES  # noqa: E402

SIZE = SIZES["10.7M"]
ARGUMENTS = argparse.Namespace(bin=pathlib.Path("bin"), gradient_as_bucket_view=True, keep_freed=False, warmup=1, steps=2)


class Trained(Trainings):
    """Trainings without processes: each rank of a model holds 20 bytes per parameter, and rank 1 a byte more."""

    def __init__(self, ranks=2, **options):
        super().__init__(argparse.Namespace(**vars(ARGUMENTS) | options), None, Layout(1, ranks), None)
        self.runs = []  # (way, width, steps, malloc's threshold)
        self.error = None

    def run(self, way, size, steps, every=1):
        self.runs.append((way, size.width, steps, os.environ.get(MALLOC_THRESHOLD)))
        if self.error:
            raise self.error
        return {0: 20 * size.parameters, 1: 21 * size.parameters}, [.5, .25]


class State(unittest.TestCase):
    def test_is_the_difference_of_two_models_in_the_largest_rank(self):
        self.assertAlmostEqual(Trained().state("off", SIZE), 21)

    def test_malloc_returns_memory_meanwhile(self):
        trainings = Trained()
        trainings.state("off", SIZE)
        trainings.timed("off", SIZE)
        self.assertEqual(trainings.runs, [("off", 384, comparison.WIDE_STEPS, "65536"),
                                          ("off", 24, comparison.NARROW_STEPS, "65536"), ("off", 384, 3, None)])

    def test_malloc_keeps_memory_if_wanted(self):
        trainings = Trained(keep_freed=True)
        trainings.state("off", SIZE)
        self.assertEqual({threshold for *_, threshold in trainings.runs}, {None})

    def test_a_training_that_does_not_fit_is_not_started(self):
        Trained().check_memory("off", SIZE)
        with self.assertRaisesRegex(Impossible, r"may need \d+ GB of memory, and \d+ GB are left"):
            Trained(ranks=1_000_000).check_memory("off", SIZE)


class Measures(unittest.TestCase):
    def test_the_state_is_measured_once_and_steps_add_up(self):
        trainings, result = Trained(), Comparison()
        for _ in range(2):
            text = result.measure(trainings, "ddp", SIZE)
        self.assertEqual(text, "0.375 s, 21.00 bytes/parameter, 225 MB in all")
        self.assertEqual(len(trainings.runs), 4)
        self.assertEqual(result.found["ddp"].seconds, [.5, .25, .5, .25])
        self.assertEqual(result.found["ddp"].peak, 21 * SIZE.parameters)

    def test_a_way_that_failed_has_its_last_line_and_no_times(self):
        trainings, result = Trained(), Comparison()
        result.measure(trainings, "ddp", SIZE)
        trainings.error = network_namespace.RankFailed("rank 0 ended with code 1: Traceback\nRuntimeError: no Gloo")
        self.assertIn("Traceback", result.measure(trainings, "ddp", SIZE))
        self.assertEqual(result.measure(trainings, "ddp", SIZE), "failed before")
        self.assertEqual((result.found, result.failures), ({}, {"ddp": "RuntimeError: no Gloo"}))


if __name__ == "__main__":
    unittest.main()

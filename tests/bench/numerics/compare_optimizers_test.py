#!/usr/bin/env python3
"""Tests compare_optimizers with a fake narrowcast-train, whose loss follows from its flags."""
import json
import pathlib
import subprocess
import sys
import tempfile
import unittest

HERE = pathlib.Path(__file__).resolve().parent
FAKE_TRAIN = """#!""" + sys.executable + """
import json, pathlib, sys

flags = dict(word.removeprefix("--").split("=", 1) for word in sys.argv[1:])
if flags["optimizer"] == "broken":
    sys.exit("narrowcast-train: it is broken")
with open(pathlib.Path(__file__).parent / "started", "a") as file:
    file.write(" ".join(sys.argv[1:]) + "\\n")
loss = 2 + float(flags["learning_rate"]) + float(flags.get("adamw_learning_rate", 0)) + .1 * int(flags["seed"])
loss += .01 * int(flags["seed"]) * (flags["optimizer"] == "muon")
folder = pathlib.Path(flags["output_dir"])
folder.mkdir(parents=True)
lines = [{"event": "evaluation", "validation_loss": 9.}, {"event": "evaluation", "validation_loss": loss}, {"event": "end"}]
(folder / "metrics.jsonl").write_text("".join(json.dumps(line) + "\\n" for line in lines))
"""


class CompareOptimizersTest(unittest.TestCase):
    def setUp(self):
        folder = tempfile.TemporaryDirectory()
        self.addCleanup(folder.cleanup)
        self.folder = pathlib.Path(folder.name)
        program = self.folder / "narrowcast-train"
        program.write_text(FAKE_TRAIN)
        program.chmod(0o755)

    def run_it(self, *flags):
        return subprocess.run([HERE / "compare_optimizers", f"--bin={self.folder}", "--data=text", f"--results={self.folder}/losses",
                               *flags], capture_output=True, text=True, timeout=60)

    def started(self):
        return (self.folder / "started").read_text().splitlines()

    def test_the_table_has_means_errors_and_differences_by_seed(self):
        done = self.run_it("--optimizers=adamw:0.5,muon:0.25:0.125", "--seeds=1,3")
        self.assertEqual(done.returncode, 0, done.stderr)
        self.assertEqual(done.stdout.splitlines()[2:],
                         ["| adamw:0.5 | 2.7000 (0.1000) |  |", "| muon:0.25:0.125 | 2.5950 (0.1100) | -0.1050 (0.0100) |"])
        self.assertEqual(len(self.started()), 4)
        self.assertIn("--optimizer=muon --learning_rate=0.25 --adamw_learning_rate=0.125 --data=text --seed=3", self.started()[3])

    def test_finished_trainings_are_not_repeated_but_those_with_other_flags_are(self):
        flags = ["--optimizers=adamw:0.5", "--seeds=1,2"]
        self.assertEqual(self.run_it(*flags).stdout, self.run_it(*flags).stdout)
        self.assertEqual(len(self.started()), 2)
        self.run_it(*flags, "--", "--steps=7")
        self.assertEqual(len(self.started()), 4)
        self.assertTrue(self.started()[2].startswith("--steps=7 --optimizer=adamw"))

    def test_a_training_that_fails_ends_it_with_its_message(self):
        done = self.run_it("--optimizers=broken:1", "--seeds=1")
        self.assertEqual(done.returncode, 1)
        self.assertIn("it is broken", done.stderr)


if __name__ == "__main__":
    unittest.main()

"""TensorBoard reads the files of narrowcast-train --tensorboard_dir."""
import json
import os
import pathlib
import subprocess
import tempfile
import unittest

from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

SMALL = ["--layers=1", "--heads=2", "--width=16", "--context=16", "--batch_size=12", "--eval_batches=1", "--sample_length=0",
         "--log_every=2", "--eval_every=3", "--bucket_cap_mb=25", "--schedule=constant", "--warmup_steps=0"]


def train(ranks, flags):
    environment = {name: value for name, value in os.environ.items() if name not in ("RANK", "WORLD_SIZE")}
    command = [os.environ["NARROWCAST_RUN"], f"--nproc_per_node={ranks}", os.environ["NARROWCAST_TRAIN"], *SMALL, *flags]
    return subprocess.run(command, env=environment | {"OMP_NUM_THREADS": "1"}, capture_output=True, text=True, check=True)


def numbers_of(lines):
    """{tag: [(step, value)]} of every number in the lines of steps and evaluations."""
    numbers = {}
    for line in lines:
        for key, value in line.items():
            if line["event"] in ("step", "evaluation") and key != "step" and isinstance(value, (int, float)):
                numbers.setdefault(f"{line['event']}/{key}", []).append((line["step"], value))
    return numbers


class TensorBoardTest(unittest.TestCase):
    def setUp(self):
        folder = tempfile.TemporaryDirectory()
        self.addCleanup(folder.cleanup)
        self.folder = pathlib.Path(folder.name)
        self.flags = [f"--output_dir={self.folder}/run", f"--tensorboard_dir={self.folder}/events"]

    def scalars(self):
        accumulator = EventAccumulator(str(self.folder / "events")).Reload()
        self.assertEqual(accumulator.file_version, 2)
        return {tag: [(event.step, event.value) for event in accumulator.Scalars(tag)]
                for tag in accumulator.Tags()["scalars"]}

    def expect_metrics(self):
        """TensorBoard has the numbers of metrics.jsonl, as float32."""
        lines = (self.folder / "run/metrics.jsonl").read_text().splitlines()
        expected, found = numbers_of(map(json.loads, lines)), self.scalars()
        self.assertEqual(found.keys(), expected.keys())
        for tag, values in expected.items():
            self.assertEqual([step for step, _ in found[tag]], [step for step, _ in values], tag)
            for (_, value), (_, wanted) in zip(found[tag], values):
                self.assertAlmostEqual(value, wanted, delta=1e-6 * abs(wanted), msg=tag)
        return found

    def test_has_the_numbers_of_the_metrics(self):
        train(2, self.flags + ["--hook=int8", "--node_size=1", "--steps=6"])
        found = self.expect_metrics()
        for tag in ("step/loss", "step/learning_rate", "step/gradient_norm", "step/units_per_second", "step/payload_bytes_sent",
                    "step/compression", "step/exchange_seconds", "step/skipped_steps", "evaluation/validation_loss"):
            self.assertIn(tag, found)
        self.assertEqual([step for step, _ in found["step/loss"]], [2, 4, 6])

    def test_a_training_that_resumes_replaces_what_came_after_its_checkpoint(self):
        checkpoints = [f"--checkpoint_dir={self.folder}/checkpoints", "--checkpoint_every=4", "--keep_checkpoints=0"]
        train(1, self.flags + checkpoints + ["--steps=6"])
        resumed = [f"--resume_from={self.folder}/checkpoints/step-00000004", "--steps=9"]
        train(1, [f"--tensorboard_dir={self.folder}/events"] + resumed)
        self.assertEqual(len(list((self.folder / "events").iterdir())), 2)
        self.assertEqual([step for step, _ in self.scalars()["step/loss"]], [2, 4, 6, 8, 9])


if __name__ == "__main__":
    unittest.main()

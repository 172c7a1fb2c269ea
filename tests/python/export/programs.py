"""Trainings of packages by narrowcast-train, on several ranks."""
import json
import os
import pathlib
import subprocess
import tempfile
import unittest

import safetensors.torch
import torch

import narrowcast_export
from export.packages import skip_without_compiler

PROGRAMS = os.path.dirname(os.environ["NARROWCAST_TRAIN"])
# The ranks, hooks and flags of the trainings.
TRAININGS = ((2, "int8", []), (2, "var5", []), (2, "power_sgd", ["--power_sgd_start=5"]), (4, "int8", []))


class ProgramsTestCase(unittest.TestCase):
    def assert_trains(self, module, inputs, targets, tolerance=1e-5):
        """Exports the module, and trains the package with each of TRAININGS. Losses must fall."""
        skip_without_compiler(self)
        environment = {**os.environ, "PATH": f"{PROGRAMS}:{os.environ['PATH']}", "CUDA_VISIBLE_DEVICES": "-1"}
        with tempfile.TemporaryDirectory() as name:
            folder = pathlib.Path(name)
            for part in ("train", "validation"):
                (folder / "data").mkdir(exist_ok=True)
                safetensors.torch.save_file({"inputs": inputs, "targets": targets}, folder / f"data/{part}.safetensors")
            narrowcast_export.export(module, (inputs[:4], targets[:4]), "cross_entropy", folder / "net.pt2", tolerance=tolerance)
            for ranks, hook, flags in TRAININGS:
                with self.subTest(ranks=ranks, hook=hook):
                    command = ["narrowcast-run", f"--nproc_per_node={ranks}", "narrowcast-train", "--model=net.pt2", "--data=data",
                               f"--hook={hook}", "--node_size=1", "--batch_size=4", "--steps=40", "--log_every=1",
                               "--learning_rate=1e-3", f"--output_dir={hook}{ranks}", *flags]
                    result = subprocess.run(command, cwd=folder, env=environment, capture_output=True, text=True)
                    self.assertEqual(result.returncode, 0, result.stdout + result.stderr)
                    lines = map(json.loads, (folder / f"{hook}{ranks}/metrics.jsonl").read_text().splitlines())
                    losses = torch.tensor([line["loss"] for line in lines if line["event"] == "step"])
                    self.assertEqual(len(losses), 40)
                    self.assertLess(losses[-5:].mean(), 0.7 * losses[:5].mean(), losses)

"""narrowcast-train with packages for several kinds of data: tables, numbers and text."""
import json
import os
import pathlib
import re
import subprocess
import tempfile
import unittest

import safetensors.torch
import torch
from torch import nn
from torch.nn.functional import cross_entropy

import narrowcast_export
from export.packages import skip_without_compiler

PROGRAMS = os.path.dirname(os.environ["NARROWCAST_TRAIN"])
ON_TWO_RANKS = "narrowcast-run --nproc_per_node=2 "
BOOK = "to be, or not to be, that is the question\n" * 80


class Table(nn.Module):
    """Two columns of indices, and two classes as targets, of which the second one may be unknown (-100). Its batch norm needs
    two samples also in evaluations."""

    def __init__(self):
        super().__init__()
        self.first, self.second = nn.Embedding(50, 8), nn.Parameter(torch.randn(3, 8))
        self.norm, self.last = nn.BatchNorm1d(8, track_running_stats=False), nn.Linear(8, 9)

    def forward(self, inputs, targets):
        logits = self.last(self.norm(self.first(inputs[:, 0]) + self.second[inputs[:, 1]]))
        return cross_entropy(logits[:, :5], targets[:, 0]) + cross_entropy(logits[:, 5:], targets[:, 1])


class Letters(nn.Module):
    def __init__(self, size):
        super().__init__()
        self.table, self.last = nn.Embedding(size, 16), nn.Linear(16, size)

    def forward(self, tokens):
        return self.last(self.table(tokens).tanh())


def table(size, seed=0):
    random = torch.Generator().manual_seed(seed)
    inputs = torch.stack([torch.randint(0, 50, (size,), generator=random), torch.randint(0, 3, (size,), generator=random)], 1)
    targets = torch.stack([inputs[:, 0] % 5, inputs[:, 1]], 1)
    targets[::4, 1] = -100
    return inputs, targets


class Data(unittest.TestCase):
    def setUp(self):
        skip_without_compiler(self)
        folder = tempfile.TemporaryDirectory()
        self.addCleanup(folder.cleanup)
        self.folder = pathlib.Path(folder.name)
        self.environment = {**os.environ, "PATH": f"{PROGRAMS}:{os.environ['PATH']}", "CUDA_VISIBLE_DEVICES": "-1"}
        torch.manual_seed(0)

    def export(self, module, example, loss=None, **options):
        return narrowcast_export.export(module, example, loss, self.folder / "net.pt2", **options)

    def write(self, folder, **parts):
        (self.folder / folder).mkdir()
        for part, (inputs, targets) in parts.items():
            safetensors.torch.save_file({"inputs": inputs, "targets": targets}, self.folder / folder / f"{part}.safetensors")

    def run_command(self, command, code=0):
        result = subprocess.run(["bash", "-c", command], cwd=self.folder, env=self.environment, capture_output=True, text=True)
        self.assertEqual(result.returncode, code, command + result.stdout + result.stderr)
        return result.stdout + result.stderr

    def losses(self, run):
        lines = map(json.loads, (self.folder / run / "metrics.jsonl").read_text().splitlines())
        return [line["loss"] for line in lines if line.get("event") == "step"]

    def test_a_table_with_unknown_classes(self):
        manifest = self.export(Table(), table(16))
        self.assertEqual(manifest["graphs"]["evaluate"]["batch"]["min"], 2)
        self.write("table", train=table(256), validation=table(33, 1))  # A rest of one sample after batches of 32.
        train = "narrowcast-train --model=net.pt2 --batch_size=32 --steps=40 --data="
        self.run_command(f"{ON_TWO_RANKS}{train}table --learning_rate=0.05 --log_every=1 --output_dir=two")
        self.assertLess(self.losses("two")[-1], 0.7 * self.losses("two")[0])
        self.assertIn("validation", self.run_command(f"{train}table --output_dir=one"))
        for column, value, text in ((0, 50, r"takes inputs at \[0:1\] of each sample in 0\.\.49, but the data has \d+ to 50"),
                                    (1, -4, r"takes inputs at \[1:2\] of each sample in -3\.\.2, but the data has -4 to 2")):
            inputs, targets = table(256)
            inputs[:, column] = torch.where(torch.arange(256) % 3 == 0, value, inputs[:, column])
            self.write(f"wrong{column}", train=(inputs, targets), validation=table(33, 1))
            self.assertRegex(self.run_command(f"{train}wrong{column}", code=2), text)
        self.write("short", train=table(256), validation=table(1))
        for options in ("", " --dry_run"):
            self.assertIn("data: an evaluation has 1 held-out samples, but the model takes at least 2 at once",
                          self.run_command(f"{train}short{options} --output_dir=none", code=2))
        self.assertFalse((self.folder / "none").exists())

    def test_numbers_with_a_step_to_skip(self):
        inputs = torch.randn(128, 3)
        targets = inputs @ torch.tensor([1.0, -2.0, 0.5])
        self.export(nn.Linear(3, 1), (inputs[:8], targets[:8]), "mse")
        broken = inputs.clone()
        broken[7] = float("inf")
        self.write("numbers", train=(broken, targets), validation=(inputs[:20], targets[:20]))
        train = (f"{ON_TWO_RANKS}narrowcast-train --model=net.pt2 --data=numbers --batch_size=16 --learning_rate=0.1 --hook=int8 "
                 "--node_size=1 --skip_nonfinite_steps --checkpoint_dir=saved --checkpoint_every=8 --schedule=constant")
        printed = self.run_command(f"{train} --steps=24 --output_dir=numbers_run")
        self.assertRegex(printed, "skipped")
        self.assertLess(float(re.findall(r"validation loss +(\S+)", printed)[-1]), 0.5)
        self.run_command(f"{train} --steps=32 --resume --output_dir=more")
        trained = safetensors.torch.load_file(self.folder / "more/model.safetensors")
        self.assertTrue(all(value.isfinite().all() for value in trained.values()))

    def test_text(self):
        (self.folder / "book.txt").write_text(BOOK)
        vocabulary = sorted(set(BOOK))
        tokens = torch.randint(0, len(vocabulary), (4, 16))
        self.export(Letters(len(vocabulary)), (tokens, tokens), "cross_entropy", vocabulary=vocabulary)
        self.run_command(f"{ON_TWO_RANKS}narrowcast-train --model=net.pt2 --data=book.txt --batch_size=16 --steps=60 "
                         "--learning_rate=0.05 --output_dir=text")
        printed = self.run_command("narrowcast-train --evaluate=text/model.safetensors --model=net.pt2 --data=book.txt "
                                   "--generate=40 --prompt='to be'")
        self.assertLess(float(re.search(r"validation loss +(\S+)", printed).group(1)), 2.0)
        self.assertRegex(printed, r"text:\nto be[a-z, \n]{30,}")


if __name__ == "__main__":
    unittest.main()

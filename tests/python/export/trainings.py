"""One package of images of digits, trained by programs: the class, the export, and the commands."""
import functools
import hashlib
import json
import os
import pathlib
import subprocess
import tempfile
import unittest

import torch
from torch import nn

import narrowcast_export
from export.packages import skip_without_compiler
from programs.your_model_test import write_mnist

PROGRAMS = os.path.dirname(os.environ["NARROWCAST_TRAIN"])
ON_TWO_RANKS = "narrowcast-run --nproc_per_node=2 "
TRAIN = "narrowcast-train --data=mnist --model=net.pt2 --batch_size=64 "
INT8 = "--hook=int8 --node_size=1 "


class Scaled(nn.Module):
    def __init__(self, factor, persistent=False):
        super().__init__()
        self.register_buffer("factor", factor, persistent=persistent)

    def forward(self, x):
        return x * self.factor


class Net(nn.Module):
    """Batch norm with buffers, dropout, tied weights, and buffers of two modules. state_dict() has the second name of one of
    these, and none of the other."""

    def __init__(self):
        super().__init__()
        self.first, self.norm = nn.Linear(784, 48), nn.BatchNorm1d(48)
        self.middle, self.again, self.last = nn.Linear(48, 48), nn.Linear(48, 48), nn.Linear(48, 10)
        self.again.weight = self.middle.weight
        root, two = torch.full((), 255**-0.5), torch.full((48,), 2.0)
        self.scale, self.rescale = Scaled(root), Scaled(root)
        self.twice, self.again_twice = Scaled(two), Scaled(two, persistent=True)

    def forward(self, images):
        x = self.norm(self.twice(self.again_twice(self.first(self.rescale(self.scale(images.flatten(1).float())))))).relu()
        return self.last(nn.functional.dropout(self.again(self.middle(x).relu()).relu(), 0.1, self.training))


@functools.cache
def exported():
    """The manifest, and the contents of net.pt2 and net.pt."""
    torch.manual_seed(0)
    net = Net()
    example = torch.randint(0, 256, (32, 28, 28)).to(torch.uint8), torch.randint(0, 10, (32,))
    with tempfile.TemporaryDirectory() as name:
        package, script = (pathlib.Path(name) / f"net.{kind}" for kind in ("pt2", "pt"))
        torch.jit.script(net).save(script)
        manifest = narrowcast_export.export(net, example, "cross_entropy", package)
        return manifest, package.read_bytes(), script.read_bytes()


class TrainingsTestCase(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        skip_without_compiler(cls)
        folder = tempfile.TemporaryDirectory()
        cls.addClassCleanup(folder.cleanup)
        cls.folder = pathlib.Path(folder.name)
        write_mnist(cls.folder / "mnist")
        (cls.folder / "tmp").mkdir()
        cls.manifest, package, script = exported()
        (cls.folder / "net.pt2").write_bytes(package)
        (cls.folder / "net.pt").write_bytes(script)
        cls.environment = {**os.environ, "PATH": f"{PROGRAMS}:{os.environ['PATH']}", "TMPDIR": str(cls.folder / "tmp"),
                           "CUDA_VISIBLE_DEVICES": "-1"}

    @classmethod
    def skipTest(cls, reason):
        raise unittest.SkipTest(reason)

    def run_command(self, command, code=0):
        result = subprocess.run(["bash", "-c", command], cwd=self.folder, env=self.environment, capture_output=True, text=True)
        self.assertEqual(result.returncode, code, command + result.stdout + result.stderr)
        self.assertEqual(self.left_over(), [], "left by " + command)
        return result.stdout + result.stderr

    def left_over(self):
        """Temporary files, of which programs must leave none."""
        return list((self.folder / "tmp").iterdir())

    def losses(self, run):
        lines = map(json.loads, (self.folder / run / "metrics.jsonl").read_text().splitlines())
        return [line["loss"] for line in lines if line.get("event") == "step" or "loss" in line and "step" in line]

    def digest(self, run):
        return hashlib.sha256((self.folder / run / "model.safetensors").read_bytes()).hexdigest()

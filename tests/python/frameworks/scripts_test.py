"""Training scripts as users write them, with one import and one line more, under torchrun: they learn, replicas have equal
bits, and the hook made a decision."""
import json
import os
import pathlib
import re
import subprocess
import sys
import tempfile
import unittest

import numpy as np

from support.versions import skip_unless_torchvision_fits

HERE = pathlib.Path(__file__).resolve().parent
ROOT = HERE.parents[2]
WORLD = 2
# On a link of 1 Gbit/s between machines of one rank each, which is not measured.
BETWEEN_MACHINES = "node_size=1, link_gbit=1, link_us=50"


def with_hook(script, options=""):
    """The text with the two lines."""
    text, imports = re.subn(r"^import torch$", "import narrowcast\nimport torch", script, count=1, flags=re.MULTILINE)
    text, wraps = re.subn(r"^( *)(model = (?:DDP|DistributedDataParallel)\(model\))$", rf'\1\2\n\1hook = narrowcast.register(model, "auto"{options})',
                          text, flags=re.MULTILINE)
    assert imports == wraps == 1 and len(text.splitlines()) == len(script.splitlines()) + 2
    return text


class Scripts(unittest.TestCase):
    def setUp(self):
        folder = tempfile.TemporaryDirectory()
        self.addCleanup(folder.cleanup)
        self.folder = pathlib.Path(folder.name)

    def train(self, text, *arguments):
        """Runs the script on two ranks. Returns its output and what was observed of each rank."""
        script = self.folder / "train.py"
        script.write_text(text)
        command = [sys.executable, "-W", "ignore", "-m", "torch.distributed.run", f"--nproc_per_node={WORLD}", "--standalone",
                   str(HERE / "observed.py"), str(script), *arguments]
        process = subprocess.run(command, cwd=self.folder, text=True, stdout=subprocess.PIPE, stderr=subprocess.STDOUT)
        self.assertEqual(process.returncode, 0, process.stdout)
        ranks = [json.loads(line) for line in re.findall(r"^observed (.*)$", process.stdout, re.MULTILINE)]
        self.assertEqual(sorted(each["rank"] for each in ranks), list(range(WORLD)), process.stdout)
        self.assertEqual(len({each["parameters"] for each in ranks}), 1, "the replicas differ")
        return process.stdout, ranks

    def check_sent(self, ranks):
        for each in ranks:
            self.assertEqual((each["name"], each["nodes"]), ("auto", f"{WORLD} x 1"))
            self.assertRegex(each["decision"], r"^(int8|bf16_compress|allreduce|var\d) ")
            self.assertGreater(each["payload"], 0)


class CharGpt(Scripts):
    """A script in nanoGPT's style."""
    script = (HERE / "char_gpt.py").read_text(encoding="utf-8")

    def train_gpt(self, text, *flags):
        output, ranks = self.train(text, f"--data_file={ROOT / 'data/tinyshakespeare.txt'}", *flags)
        losses = [float(loss) for loss in re.findall(r"val loss ([\d.]+)", output)]
        self.assertGreater(losses[0], 4, output)  # For uniform characters it is log 65 = 4.2.
        self.assertLess(losses[-1], 3.25, output)  # Characters' frequencies alone give 3.3.
        self.assertTrue((self.folder / "out/ckpt.pt").exists())
        return losses[-1], ranks

    def test_on_one_machine(self):
        """Ranks average in its memory in float32, and two ranks get the bits of PyTorch's mean."""
        _, without = self.train_gpt(self.script)
        _, ranks = self.train_gpt(with_hook(self.script))
        self.assertEqual(ranks[0]["nodes"], f"1 x {WORLD}")
        self.assertEqual(ranks[0]["payload"], 0)
        self.assertNotEqual(ranks[0]["decision"], "")
        self.assertEqual(ranks[0]["parameters"], without[0]["parameters"])

    def test_between_machines(self):
        """With a GradScaler."""
        _, ranks = self.train_gpt(with_hook(self.script, f", {BETWEEN_MACHINES}"), "--dtype=float16")
        self.check_sent(ranks)


class Digits(Scripts):
    """torchvision's ResNet-18."""

    def setUp(self):
        super().setUp()
        skip_unless_torchvision_fits(self)

    def write_mnist(self):
        """Images of 28 x 28 with noise, whose digit is the number of a bright row, and their labels."""
        folder = self.folder / "MNIST/raw"
        folder.mkdir(parents=True)
        generator = np.random.default_rng(0)
        for name, count in (("train", 320), ("t10k", 100)):
            labels = np.arange(count, dtype=np.uint8) % 10
            images = generator.integers(0, 100, (count, 28, 28), dtype=np.uint8)
            for row in range(2):
                images[np.arange(count), 4 + 2 * labels + row] = 200
            (folder / f"{name}-images-idx3-ubyte").write_bytes(np.array([2051, count, 28, 28], ">i4").tobytes() + images.tobytes())
            (folder / f"{name}-labels-idx1-ubyte").write_bytes(np.array([2049, count], ">i4").tobytes() + labels.tobytes())

    def test_between_machines(self):
        self.write_mnist()
        script = (HERE / "digits.py").read_text(encoding="utf-8")
        output, ranks = self.train(with_hook(script, f", {BETWEEN_MACHINES}"), str(self.folder))
        losses = [float(loss) for loss in re.findall(r"epoch \d: loss ([\d.]+)", output)]
        self.assertLess(losses[-1], losses[0] / 2, output)
        self.check_sent(ranks)


if __name__ == "__main__":
    unittest.main()

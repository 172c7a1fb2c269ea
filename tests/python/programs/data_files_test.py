"""narrowcast-train reads folders of data written by NumPy, safetensors and torch: every value of every dtype."""
import contextlib
import os
import pathlib
import re
import subprocess
import tempfile
import unittest

import numpy as np
import torch
from safetensors.numpy import save_file as save_numpy
from safetensors.torch import save_file as save_torch

GUIDE = pathlib.Path(__file__).resolve().parents[3] / "docs" / "guide" / "data.md"
NUMPY_DTYPES = ("<f8", "<f4", "<f2", "<i8", "<i4", "<i2", "|i1", "<u4", "<u2", "|u1", "|b1")
TORCH_DTYPES = (torch.float64, torch.float32, torch.float16, torch.bfloat16, torch.int64, torch.int32, torch.int16,
                torch.int8, torch.uint8, torch.bool)


class WeightedSum(torch.nn.Module):
    """Its loss shows which numbers it received, in which places: the sum of each number times its place, plus a
    parameter of 0."""

    def __init__(self):
        super().__init__()
        self.zero = torch.nn.Parameter(torch.zeros(()))

    def forward(self, inputs, targets):
        places = torch.arange(1, inputs[0].numel() + 1, dtype=torch.float64)
        total = (inputs.flatten(1).double() * places).sum(1) + 1000 * targets.double()
        return total.mean().float() + self.zero


class DataFiles(unittest.TestCase):
    def setUp(self):
        folder = tempfile.TemporaryDirectory()
        self.addCleanup(folder.cleanup)
        self.folder = pathlib.Path(folder.name)
        torch.jit.script(WeightedSum()).save(self.folder / "sum.pt")

    def check_values(self, data, inputs, targets):
        """The loss of one step over all four samples is the loss of the written numbers."""
        environment = {name: value for name, value in os.environ.items() if name not in ("RANK", "WORLD_SIZE")}
        command = [os.environ["NARROWCAST_TRAIN"], f"--model={self.folder}/sum.pt", f"--data={data}", "--steps=1",
                   "--batch_size=4", "--eval_batches=1", "--learning_rate=1e-9", "--hook=none", "--device=cpu"]
        result = subprocess.run(command, env=environment, capture_output=True, text=True)
        self.assertEqual(result.returncode, 0, f"{data}: {result.stderr}")
        places = np.arange(1, 7, dtype=np.float64)
        expected = float(((inputs.reshape(4, 6).astype(np.float64) * places).sum(1) + 1000 * targets).mean())
        losses = [float(loss) for loss in re.findall(r"(?:training|validation) loss +(\S+)", result.stdout)]
        self.assertEqual(len(losses), 2)
        for loss in losses:
            self.assertAlmostEqual(loss, expected, delta=abs(expected) * 1e-6 + 1e-3, msg=data)  # float32, 4 decimals.

    def values(self):
        """0 and 1 for all dtypes, in a pattern that every shift changes; targets 0, 1, 0, 0."""
        return np.array([int(bit) for bit in "101100111000110101011110"]).reshape(4, 2, 3), np.array([0, 1, 0, 0])

    def folder_of(self, name):
        data = self.folder / name
        data.mkdir()
        return data

    def test_numpy_arrays_of_every_dtype_and_version(self):
        inputs, targets = self.values()
        for number, dtype in enumerate(NUMPY_DTYPES):
            data = self.folder_of(f"npy{number}")
            for part in ("train", "validation"):
                for name, array in (("inputs", inputs), ("targets", targets)):
                    with open(data / f"{part}_{name}.npy", "wb") as file:
                        np.lib.format.write_array(file, array.astype(dtype), version=(1 + number % 3, 0))
            with self.subTest(dtype):
                self.check_values(data, inputs, targets)

    def test_safetensors_of_every_dtype(self):
        inputs, targets = self.values()
        for number, dtype in enumerate(TORCH_DTYPES):
            data = self.folder_of(f"torch{number}")
            for part in ("train", "validation"):
                save_torch({"inputs": torch.tensor(inputs).to(dtype), "targets": torch.tensor(targets).to(dtype)},
                           data / f"{part}.safetensors")
            with self.subTest(dtype):
                self.check_values(data, inputs, targets)

    def test_shards_by_numpy(self):
        inputs, targets = self.values()
        data = self.folder_of("shards")
        for name, rows in (("train-1", slice(0, 1)), ("train-2", slice(1, 4)), ("validation", slice(0, 4))):
            save_numpy({"inputs": inputs[rows], "targets": targets[rows]}, data / f"{name}.safetensors",
                       metadata={"made": "by numpy"})
        self.check_values(data, inputs, targets)

    def test_tokens(self):
        tokens = np.array([7, 1, 65535, 3, 2], dtype=np.uint16)
        data = self.folder_of("tokens")
        for name in ("train.bin", "val.bin"):
            tokens.tofile(data / name)
        result = subprocess.run([os.environ["NARROWCAST_TRAIN"], f"--data={data}", "--context=4", "--batch_size=1",
                                 "--dry_run"], capture_output=True, text=True)
        self.assertEqual(result.returncode, 0, result.stderr)
        self.assertIn("65536", result.stdout, "the vocabulary is the greatest token and one")

    def test_tokens_as_in_the_guide(self):
        (example,) = re.findall(r"^```python\n(.*?)^```", GUIDE.read_text(encoding="utf-8"), re.MULTILINE | re.DOTALL)

        class Tokenizer:
            def encode(self, text):
                return [300 + ord(character) for character in text]

        with contextlib.chdir(self.folder):
            exec(example, {"tokenizer": Tokenizer(), "text": "abcdefghij" * 10})
        tokens = np.concatenate([np.fromfile(self.folder / "tokens" / name, np.uint16) for name in ("train.bin", "val.bin")])
        self.assertEqual(tokens.tolist(), [300 + ord(character) for character in "abcdefghij" * 10])
        result = subprocess.run([os.environ["NARROWCAST_TRAIN"], f"--data={self.folder}/tokens", "--context=4",
                                 "--batch_size=1", "--dry_run"], capture_output=True, text=True)
        self.assertEqual(result.returncode, 0, result.stderr)
        self.assertIn(str(300 + ord("j") + 1), result.stdout, "the vocabulary is the greatest token and one")

    def test_what_numpy_writes_otherwise_is_one_line(self):
        inputs, targets = self.values()
        for number, (array, told) in enumerate(((inputs.astype(">f4"), "big-endian"),
                                                (np.asfortranarray(inputs.astype("<f4")), "Fortran order"),
                                                (inputs.astype("<c8"), "not supported"))):
            data = self.folder_of(f"other{number}")
            for part in ("train", "validation"):
                np.save(data / f"{part}_inputs.npy", array)
                np.save(data / f"{part}_targets.npy", targets)
            result = subprocess.run([os.environ["NARROWCAST_TRAIN"], f"--model={self.folder}/sum.pt", f"--data={data}"],
                                    capture_output=True, text=True)
            self.assertEqual(result.returncode, 4)
            self.assertRegex(result.stderr, rf"\Anarrowcast-train: {data}/train_inputs.npy: byte \d+: .*{told}.*\n\Z")


if __name__ == "__main__":
    unittest.main()

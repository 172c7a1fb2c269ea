"""docs/your_model.md: every block of it, one after the other, in one folder."""
import os
import pathlib
import re
import shutil
import subprocess
import sys
import tempfile
import unittest

DOCS = pathlib.Path(__file__).resolve().parents[2] / "docs"
DOCUMENT = (DOCS / "your_model.md").read_text(encoding="utf-8")
PROGRAMS = os.path.dirname(os.environ["NARROWCAST_TRAIN"])


def idx_images(count):
    """Images of 28 x 28 in which the digit is a row that is bright, and their labels."""
    digits = [image % 10 for image in range(count)]
    pixels = b"".join(bytes(200 if pixel // 56 == digit else pixel % 7 for pixel in range(784)) for digit in digits)
    sizes = b"".join(size.to_bytes(4, "big") for size in (count, 28, 28))
    return b"\0\0\x08\x03" + sizes + pixels, b"\0\0\x08\x01" + sizes[:4] + bytes(digits)


def write_mnist(folder):
    folder.mkdir()
    for part, count in (("train", 300), ("t10k", 60)):
        images, labels = idx_images(count)
        (folder / f"{part}-images-idx3-ubyte").write_bytes(images)
        (folder / f"{part}-labels-idx1-ubyte").write_bytes(labels)


class YourModel(unittest.TestCase):
    def setUp(self):
        folder = tempfile.TemporaryDirectory()
        self.addCleanup(folder.cleanup)
        self.folder = pathlib.Path(folder.name)
        write_mnist(self.folder / "mnist")
        shutil.copy(DOCS / "hooks.md", self.folder / "book.txt")
        paths = {"PATH": f"{PROGRAMS}:{os.environ['PATH']}", "OMP_NUM_THREADS": "1", "CUDA_VISIBLE_DEVICES": "-1"}
        self.environment = {name: value for name, value in os.environ.items() if name not in ("RANK", "WORLD_SIZE")} | paths

    def run_block(self, language, text):
        """A Python block is a file, whose name its first line says."""
        command = ["bash", "-e", "-c", text]
        if language == "python":
            name = re.match(r"# (\w+\.py)\n", text)[1]
            (self.folder / name).write_text(text)
            command = [sys.executable, name]
        result = subprocess.run(command, cwd=self.folder, env=self.environment, capture_output=True, text=True)
        self.assertEqual(result.returncode, 0, text + result.stdout + result.stderr)
        return result.stdout

    def test_blocks_run(self):
        blocks = re.findall(r"^```(\w+)\n(.*?)^```", DOCUMENT, re.MULTILINE | re.DOTALL)
        walks = 3 * ["python", "python", "sh"]
        self.assertEqual([language for language, _ in blocks], ["python", "sh", "python", "python", "sh", *walks])
        printed = [self.run_block(language, text) for language, text in blocks]
        accuracies = re.findall(r"accuracy +(\S+)", printed[1])
        self.assertEqual(len(accuracies), 2, "of the training and of the evaluation")
        self.assertEqual(accuracies[0], accuracies[1])
        self.assertGreater(float(accuracies[0]), 0.5)
        rings, languages, curves = (re.findall(r"validation loss +(\S+)", printed[block]) for block in (7, 10, 13))
        # Points and first weights are other ones each time: half of what guessing comes to, ln 2.
        self.assertLess(float(rings[0]), 0.35)
        self.assertLess(float(languages[0]), 4.0)  # Guessing is ln 256 = 5.5,
        self.assertEqual(len(languages), 2)
        self.assertLess(float(curves[0]), 0.05)  # and, with 0 for every point, 0.5.
        for run in ("net", "smooth", "ring", "language", "curve"):
            files = {path.name for path in (self.folder / "runs" / run).iterdir()}
            self.assertEqual(files, {"model.pt", "model.safetensors", "metrics.jsonl"})


if __name__ == "__main__":
    unittest.main()

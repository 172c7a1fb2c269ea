"""docs/guide/export.md: runs its blocks, one after another, in one folder."""
import os
import pathlib
import re
import subprocess
import sys
import tempfile
import unittest

from export.packages import Package, skip_without_compiler
from programs.your_model_test import write_mnist

DOCS = pathlib.Path(__file__).resolve().parents[3] / "docs"
BLOCKS = re.findall(r"^```(\w+)\n(.*?)^```", (DOCS / "guide/export.md").read_text(encoding="utf-8"), re.MULTILINE | re.DOTALL)


class Document(unittest.TestCase):
    def test_blocks_run(self):
        skip_without_compiler(self)
        self.assertEqual([language for language, _ in BLOCKS], ["python", "sh", "python", "python"])
        environment = {**os.environ, "PATH": f"{os.path.dirname(os.environ['NARROWCAST_TRAIN'])}:{os.environ['PATH']}"}
        with tempfile.TemporaryDirectory() as folder:
            path = pathlib.Path(folder)
            write_mnist(path / "mnist")
            for language, block in BLOCKS:
                command = ["bash", "-e", "-c", block]
                if language == "python":
                    name = re.match(r"# (\w+\.py)\n", block)[1]
                    (path / name).write_text(block)
                    command = [sys.executable, name]
                result = subprocess.run(command, cwd=folder, env=environment, capture_output=True, text=True)
                self.assertEqual(result.returncode, 0, block + result.stdout + result.stderr)
                if language == "sh":
                    accuracies = re.findall(r"accuracy +(\d\S+)", result.stdout)
                    self.assertEqual(accuracies[-2], accuracies[-1], "of the training and of the evaluation")
                    self.assertGreater(float(accuracies[-1]), 0.5)
            self.assertEqual(Package(path / "net.pt2").manifest["loss"], "cross_entropy")
            self.assertEqual(Package(path / "smooth.pt2").manifest["loss"], "module")


if __name__ == "__main__":
    unittest.main()

"""docs/guide/export.md: runs its blocks, one after another, in one folder."""
import pathlib
import re
import subprocess
import sys
import tempfile
import unittest

from export.packages import Package, skip_without_compiler

DOCS = pathlib.Path(__file__).resolve().parents[3] / "docs"
BLOCKS = re.findall(r"^```python\n(.*?)^```", (DOCS / "guide/export.md").read_text(encoding="utf-8"), re.MULTILINE | re.DOTALL)


class Document(unittest.TestCase):
    def test_blocks_run(self):
        skip_without_compiler(self)
        self.assertEqual(len(BLOCKS), 2)
        with tempfile.TemporaryDirectory() as folder:
            for block in BLOCKS:
                name = re.match(r"# (\w+\.py)\n", block)[1]
                (pathlib.Path(folder) / name).write_text(block)
                result = subprocess.run([sys.executable, name], cwd=folder, capture_output=True, text=True)
                self.assertEqual(result.returncode, 0, block + result.stdout + result.stderr)
            self.assertEqual(Package(pathlib.Path(folder) / "net.pt2").manifest["loss"], "cross_entropy")
            self.assertEqual(Package(pathlib.Path(folder) / "smooth.pt2").manifest["loss"], "module")


if __name__ == "__main__":
    unittest.main()

"""docs/start/python.md: its script, under its command, prints what the page shows."""
import pathlib
import re
import subprocess
import sys
import tempfile
import unittest

DOCUMENT = (pathlib.Path(__file__).resolve().parents[3] / "docs/start/python.md").read_text(encoding="utf-8")
SHELL = "".join(re.findall(r"^```sh\n(.*?)^```", DOCUMENT, re.MULTILINE | re.DOTALL))
RESULT = r"loss ([\d.]+), sent ([\d.]+) MB in 30 steps"


class FiveMinutes(unittest.TestCase):
    def test_the_script(self):
        (script,) = re.findall(r"^```python\n(.*?)^```", DOCUMENT, re.MULTILINE | re.DOTALL)
        (arguments,) = re.findall(r"^torchrun (.*)$", SHELL, re.MULTILINE)
        with tempfile.TemporaryDirectory() as folder:
            (pathlib.Path(folder) / "train.py").write_text(script)
            output = subprocess.run([sys.executable, "-m", "torch.distributed.run", *arguments.split()], cwd=folder, text=True,
                                    stdout=subprocess.PIPE, check=True).stdout
        loss, sent = re.search(RESULT, output).groups()
        shown_loss, shown_sent = re.search(f"^# {RESULT}$", SHELL, re.MULTILINE).groups()
        self.assertEqual(sent, shown_sent)
        self.assertAlmostEqual(float(loss) / float(shown_loss), 1, delta=.1)  # Inputs are random; at first it is 0.33.


if __name__ == "__main__":
    unittest.main()

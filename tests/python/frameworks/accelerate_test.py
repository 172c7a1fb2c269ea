"""Hugging Face Accelerate trains with narrowcast's hooks, under torchrun and narrowcast-run."""
import os
import pathlib
import re
import subprocess
import sys
import tempfile
import unittest

HERE = pathlib.Path(__file__).resolve().parent
ROOT = HERE.parents[2]
TORCHRUN = [sys.executable, "-W", "ignore", "-m", "torch.distributed.run", "--nproc_per_node=2", "--standalone"]
NARROWCAST_RUN = [os.environ["NARROWCAST_RUN"], "--nproc_per_node=2", sys.executable, "-W", "ignore"]


class Accelerate(unittest.TestCase):
    def run_ranks(self, *command):
        process = subprocess.run(command, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
        self.assertEqual(process.returncode, 0, process.stdout)
        return process.stdout

    def test_ranks_of_narrowcast_run(self):
        output = self.run_ranks(*NARROWCAST_RUN, str(HERE / "accelerate_rank.py"))
        self.assertEqual(len(re.findall(r"\bOK$", output, re.MULTILINE)), 2, output)

    def test_example_under_torchrun(self):
        """The loss falls, and each rank saves the state of its hook."""
        with tempfile.TemporaryDirectory() as folder:
            output = self.run_ranks(*TORCHRUN, str(ROOT / "docs/examples/accelerate_from_python.py"), f"--data={ROOT / 'README.md'}",
                                    "--hook=int8", "--node_size=1", "--steps=101", f"--output={folder}")
            self.assertEqual(sorted(each.name for each in pathlib.Path(folder).glob("hook*")), ["hook0.pt", "hook1.pt"])
        losses = [float(loss) for loss in re.findall(r"loss ([\d.]+)", output)]
        self.assertGreater(losses[0], 5, output)  # For uniform bytes it is log 256 = 5.5.
        self.assertLess(losses[-1], 3, output)
        self.assertGreater(float(re.search(r"hook int8: rank 0 sent ([\d.]+) MB", output)[1]), 10, output)


if __name__ == "__main__":
    unittest.main()

"""Lightning trains with narrowcast's hooks: under torchrun, with Lightning's own launcher, and in spawned processes."""
import pathlib
import re
import subprocess
import sys
import unittest

from support.versions import skip_unless_torchvision_fits

HERE = pathlib.Path(__file__).resolve().parent
ROOT = HERE.parents[2]
TORCHRUN = ["-W", "ignore", "-m", "torch.distributed.run", "--nproc_per_node=2", "--standalone"]


def run(*arguments):
    """Runs Python. Returns its exit code and its output."""
    process = subprocess.run([sys.executable, *arguments], stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
    return process.returncode, process.stdout


class Lightning(unittest.TestCase):
    def setUp(self):
        skip_unless_torchvision_fits(self)  # Lightning imports torchvision if it is installed.

    def test_ranks_of_torchrun(self):
        code, output = run(*TORCHRUN, str(HERE / "lightning_rank.py"))
        self.assertEqual(code, 0, output)
        self.assertEqual(len(re.findall(r"^OK$", output, re.MULTILINE)), 2, output)

    def test_example_with_the_launcher_of_lightning(self):
        """And the loss falls."""
        code, output = run("-W", "ignore", str(ROOT / "docs/examples/lightning_from_python.py"), f"--data={ROOT / 'README.md'}", "--hook=int8",
                           "--node_size=1", "--steps=61")
        self.assertEqual(code, 0, output)
        losses = [float(loss) for loss in re.findall(r"loss ([\d.]+)", output)]
        self.assertGreater(losses[0], 5, output)  # For uniform bytes it is log 256 = 5.5.
        self.assertLess(losses[-1], 3, output)
        self.assertGreater(float(re.search(r"hook int8: rank 0 sent ([\d.]+) MB", output)[1]), 10, output)

    def test_spawned_processes(self):
        """The strategy is pickled, with its CommHook."""
        code, output = run("-W", "ignore", str(HERE / "lightning_spawn.py"))
        self.assertEqual(code, 0, output)
        self.assertIn("equal bits: True", output)


if __name__ == "__main__":
    unittest.main()

"""The checks of ddp_options_test and compiled_hook_test on ranks of narrowcast-run and of PyTorch's launcher torchrun."""
import os
import subprocess
import sys
import unittest

from package import compiled_hook_test, ddp_options_test

WORLD = 2


class Checks:
    """Runs checks of a module's OnEachRank on ranks of `launcher`; not a test by itself."""

    def check(self, module, checks):
        command = [*self.launcher(), sys.executable, "-W", "ignore", "-m", "support.checking_rank", module.__name__, *checks]
        process = subprocess.run(command, text=True, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.STDOUT)
        self.assertEqual(process.returncode, 0, process.stdout)
        for name in checks:
            self.assertEqual(process.stdout.count(f"passed: {name}"), WORLD, process.stdout)

    def test_options_of_ddp(self):
        self.check(ddp_options_test, ddp_options_test.CHECKS)

    def test_compiled_hook(self):
        self.check(compiled_hook_test, compiled_hook_test.CHECKS)


class UnderNarrowcastRun(Checks, unittest.TestCase):
    @staticmethod
    def launcher():
        return [os.environ["NARROWCAST_RUN"], f"--nproc_per_node={WORLD}"]


class UnderTorchrun(Checks, unittest.TestCase):
    @staticmethod
    def launcher():
        return [sys.executable, "-W", "ignore", "-m", "torch.distributed.run", f"--nproc_per_node={WORLD}", "--standalone",
                "--no_python"]


def load_tests(loader, _tests, _pattern):
    return unittest.TestSuite(map(loader.loadTestsFromTestCase, (UnderNarrowcastRun, UnderTorchrun)))


if __name__ == "__main__":
    unittest.main()

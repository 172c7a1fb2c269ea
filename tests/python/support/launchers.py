"""Programs on the ranks of one machine, under narrowcast-run and under PyTorch's launcher torchrun."""
import os
import subprocess
import sys

WORLD = 2


def narrowcast_run(world_size):
    """The command that starts the program that follows it on so many ranks. Here and below."""
    return [os.environ["NARROWCAST_RUN"], f"--nproc_per_node={world_size}"]


def torchrun(world_size):
    return [sys.executable, "-W", "ignore", "-m", "torch.distributed.run", f"--nproc_per_node={world_size}", "--standalone",
            "--no_python"]


class UnderLauncher:
    """Runs checks of the module's OnEachRank on two ranks of `launcher`; not a test by itself."""

    def check(self, *checks):
        command = [*self.launcher(WORLD), sys.executable, "-W", "ignore", "-m", "support.checking_rank",
                   type(self).__module__, *checks]
        process = subprocess.run(command, text=True, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.STDOUT)
        self.assertEqual(process.returncode, 0, process.stdout)
        for name in checks:
            self.assertEqual(process.stdout.count(f"passed: {name}"), WORLD, process.stdout)

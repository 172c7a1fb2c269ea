"""narrowcast-train with a package under torchrun, and under narrowcast-run where a rank is killed: the bits of an undisturbed
training."""
import os
import re
import signal
import subprocess
import sys
import time
import unittest

from export.trainings import INT8, ON_TWO_RANKS, TRAIN, TrainingsTestCase

# The network's measured speed may change the bits.
FLAGS = f"{TRAIN}{INT8}--link_gbit=1 --link_us=100 --bucket_cap_mb=0.05 --log_every=1 --eval_every=0 --steps=100 "
TORCHRUN = f"'{sys.executable}' -W ignore -m torch.distributed.run --nproc_per_node=2 --standalone --log_dir=logs --no-python "
WAIT_SECONDS = 120


class Launchers(TrainingsTestCase):
    @classmethod
    def setUpClass(cls):
        super().setUpClass()
        command = f"{ON_TWO_RANKS}{FLAGS}--output_dir=undisturbed"
        subprocess.run(["bash", "-c", command], cwd=cls.folder, env=cls.environment, check=True, capture_output=True)

    def test_torchrun(self):
        printed = self.run_command(f"{TORCHRUN}{FLAGS}--output_dir=torchrun")
        self.assertIn("replicas         identical on all ranks", printed)
        self.assertEqual(self.digest("torchrun"), self.digest("undisturbed"))

    def test_a_killed_rank(self):
        for recovery, expected, refused in (
                ("restart", r"(?s)restart 1 \(--max_restarts=1\).*resumes from \S*step-000000\d\d", "takes its place"),
                ("in_place", r"(?s)takes its place.*recovered: rank 1 was lost; goes on after step \d+", "resumes from")):
            with self.subTest(recovery=recovery):
                printed = self.train_with_a_killed_rank(recovery)
                self.assertRegex(printed, expected)
                self.assertNotIn(refused, printed)
                self.assertEqual(self.digest(recovery), self.digest("undisturbed"))
                self.assertEqual(self.left_over(), [])

    def train_with_a_killed_rank(self, recovery):
        """Kills rank 1 after some steps. Returns what the launcher has printed."""
        command = (f"exec {ON_TWO_RANKS}--max_restarts=1 --recovery={recovery} sh -c 'echo rank $RANK pid $$; exec \"$0\" \"$@\"' "
                   f"{FLAGS}--output_dir={recovery} --checkpoint_dir={recovery}_checkpoints --checkpoint_every=5 --resume")
        log = self.folder / f"{recovery}.log"
        with open(log, "w", encoding="utf-8") as output:
            launcher = subprocess.Popen(["bash", "-c", command], cwd=self.folder, env=self.environment, stdout=output,
                                        stderr=subprocess.STDOUT)
        try:
            while not (self.folder / f"{recovery}_checkpoints/step-00000010").exists():
                self.assertIsNone(launcher.poll(), log.read_text())
                time.sleep(0.002)
            (pid,) = re.findall(r"rank 1 pid (\d+)", log.read_text())
            os.kill(int(pid), signal.SIGKILL)
            self.assertEqual(launcher.wait(WAIT_SECONDS), 0, log.read_text())
        finally:
            launcher.kill()
            launcher.wait()
        return log.read_text()


if __name__ == "__main__":
    unittest.main()

"""How processes with hooks end, under narrowcast-run and under PyTorch's launcher torchrun."""
import os
import pathlib
import re
import signal
import subprocess
import sys
import threading
import time
import unittest

from support import ending_rank
from support.launchers import narrowcast_run, torchrun

RANK = pathlib.Path(__file__).resolve().parents[1] / "support/ending_rank.py"
WORLD = 2
LIMIT = 90  # Seconds of a case, of which most start Python.
# Seconds in which the end of a process ends the others and the launcher, on a machine with other work. Less than the 60 s of
# the group's time-out, which a killed rank's peers must not wait for.
LATE = 10
TIMEOUT = ending_rank.TIMEOUT.total_seconds()
ABORTS = ("terminate called", "Fatal Python error", "Aborted", "core dumped", "Segmentation fault")


class Exits:
    """The cases, for a launcher; not a test by itself."""

    def run_case(self, case, number=None, world_size=WORLD):
        """Runs it. The ranks' processes must all end in time and without an abort. Returns exit code, output, and the seconds
        since rank 1 printed that it is ready, if it does. number: a signal for rank 1, once it is ready."""
        process = subprocess.Popen([*self.launcher(world_size), sys.executable, "-W", "ignore", str(RANK), case], text=True,
                                   stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.STDOUT)
        timer = threading.Timer(LIMIT + TIMEOUT + self.grace, process.terminate)
        timer.start()
        output, ready = "", None
        for line in process.stdout:
            output += line
            if ready is None and "ready" in line:
                ready = time.monotonic()
                if number is not None:
                    os.kill(self.pids(output)["1"], number)
        process.wait()
        seconds = None if ready is None else time.monotonic() - ready
        self.assertTrue(timer.is_alive(), output)
        timer.cancel()
        self.check_that_all_ended(output, world_size)
        return process.returncode, output, seconds

    def check_hung_rank(self, case):
        """The group's time-out ends another rank, whose error names the stopped one. The launcher ends the rest."""
        self.check_lost_rank(case, 1, r"DistBackendError: rank [02]: int8 of bucket 0: .*rank 1", TIMEOUT + self.grace + LATE)

    def pids(self, output):
        return {rank: int(pid) for rank, pid in re.findall(r"pid of rank (\d): (\d+)", output)}

    def check_that_all_ended(self, output, world_size):
        pids = self.pids(output)
        self.assertEqual(len(pids), world_size, output)
        for rank, pid in pids.items():
            with self.assertRaises(ProcessLookupError, msg=f"rank {rank} remains"):
                os.kill(pid, 0)
        for text in ABORTS:
            self.assertNotIn(text, output)

    def check_success(self, case, expected=""):
        code, output, _ = self.run_case(case)
        self.assertEqual(code, 0, output)
        self.assertIn(expected, output)

    def check_failure(self, case, code, expected, number=None):
        actual, output, _ = self.run_case(case, number)
        self.assertEqual(actual, code, output)
        self.assertRegex(output, expected)

    def check_lost_rank(self, case, code, expected, limit):
        """Three ranks, of which rank 1 stops. `limit`: of the seconds until all have ended."""
        actual, output, seconds = self.run_case(case, world_size=3)
        self.assertEqual(actual, code, output)
        self.assertRegex(output, expected)
        self.assertLess(seconds, limit, output)

    def test_destroyed_group(self):
        self.check_success("destroy")

    def test_group_that_is_not_destroyed(self):
        self.check_success("end")

    def test_closed_hook_and_destroyed_group(self):
        self.check_success("close_first")

    def test_destroyed_group_and_closed_hook(self):
        self.check_success("close_last")

    def test_bucket_that_the_other_rank_does_not_have(self):
        self.check_success("in_flight", "in flight: True")

    def test_outer_exchange_under_way(self):
        self.check_success("diloco")

    def test_forked_worker(self):
        self.check_success("worker_processes")

    def test_forked_child(self):
        code, output, _ = self.run_case("forked_child")
        self.assertEqual(code, 0, output)
        self.assertEqual(output.count("child: 3"), WORLD, output)
        closed = sorted(int(pid) for pid in re.findall(r"closed by (\d+)", output))
        self.assertEqual(closed, sorted(self.pids(output).values()), output)

    def test_exception_in_backward(self):
        self.check_failure("exception", 1, "KeyError: \"the model's own error\"")

    def test_exit_in_a_step(self):
        self.check_failure("system_exit", self.code_of(7), self.exit_text(7))

    def test_interrupt(self):
        self.check_failure("interrupted", self.code_of(-signal.SIGINT), "KeyboardInterrupt", number=signal.SIGINT)

    def test_hung_rank(self):
        self.check_hung_rank("hung")

    def test_killed_rank(self):
        self.check_lost_rank("killed", self.code_of(-signal.SIGKILL), self.exit_text(-signal.SIGKILL), LATE)


class UnderNarrowcastRun(Exits, unittest.TestCase):
    launcher = staticmethod(narrowcast_run)
    grace = 3  # Its default for --shutdown_timeout: seconds before it kills a stopped process.

    def code_of(self, code):
        return code if code >= 0 else 128 - code

    def exit_text(self, code):
        return rf"rank 1 \(pid \d+\) failed first: {f'exit code {code}' if code >= 0 else 'signal'}"

    def test_hung_rank_of_a_node(self):
        self.check_hung_rank("hung_in_its_node")


class UnderTorchrun(Exits, unittest.TestCase):
    launcher = staticmethod(torchrun)
    grace = 30  # Seconds before it kills a stopped process.

    def code_of(self, _code):
        return 1

    def exit_text(self, code):
        return rf"rank +: 1 [^[]*exitcode +: {code} "


if __name__ == "__main__":
    unittest.main()

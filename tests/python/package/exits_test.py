"""How processes with hooks end, under narrowcast-run, under PyTorch's launcher torchrun, and without a launcher."""
import os
import pathlib
import re
import signal
import socket
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
# the group's time-out, which a lost rank's peers must not wait for.
LATE = 10
TIMEOUT = ending_rank.TIMEOUT.total_seconds()
# Seconds until all others have noticed a rank that hangs: they look each second, the rank that watches it counts the looks, and
# the others learn of it at their next look.
NOTICED = ending_rank.SILENCE + 2
LOST = r"DistBackendError: rank {}: rank {} is lost: it has sent no heartbeat for " + str(ending_rank.SILENCE) + " s"
ABORTS = ("terminate called", "Fatal Python error", "Aborted", "core dumped", "Segmentation fault")


def is_running(pid):
    """A process that has ended counts as gone before its parent reaps it: process 1 may take its time."""
    try:
        return pathlib.Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] not in "ZX"
    except (FileNotFoundError, ProcessLookupError):
        return False


class Exits:
    """The cases, for a launcher; not a test by itself."""

    def run_case(self, case, number=None, world_size=WORLD):
        """Runs it. The ranks' processes must all end in time and without an abort. Returns exit code, output, and the seconds
        since rank 1 printed that it is ready, if it does. number: a signal for rank 1, once it is ready."""
        process = subprocess.Popen([*self.launcher(world_size), sys.executable, "-W", "ignore", str(RANK), case], text=True,
                                   stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.STDOUT)
        timer = threading.Timer(LIMIT + NOTICED + self.grace, process.terminate)
        timer.start()
        output, ready = "", None
        for line in process.stdout:
            output += line
            if ready is None and "ready" in line:
                ready = time.monotonic()
                if number is not None:
                    os.kill(self.pids(output)["1"], number)
        process.stdout.close()
        process.wait()
        seconds = None if ready is None else time.monotonic() - ready
        self.assertTrue(timer.is_alive(), output)
        timer.cancel()
        self.check_that_all_ended(output, world_size)
        return process.returncode, output, seconds

    def check_hung_rank(self, case, expected=LOST.format("[02]", 1), noticed=NOTICED):
        """Another rank notices the stopped one and fails. The launcher ends the rest."""
        self.check_lost_rank(case, 1, expected, noticed + self.grace + LATE)

    def pids(self, output):
        return {rank: int(pid) for rank, pid in re.findall(r"pid of rank (\d): (\d+)", output)}

    def check_that_all_ended(self, output, world_size):
        pids = self.pids(output)
        self.assertEqual(len(pids), world_size, output)
        for rank, pid in pids.items():
            self.assertFalse(is_running(pid), f"rank {rank} remains")
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

    def test_hung_rank_in_an_outer_step(self):
        self.check_hung_rank("hung_in_an_outer_step")

    def test_hung_rank_in_a_collective_of_pytorch(self):
        self.check_hung_rank("hung_in_a_collective", r"(?s)Warning: rank [02]: rank 1 is lost.*RuntimeError: Application timeout")

    def test_hung_rank_that_is_not_watched(self):
        self.check_hung_rank("hung_without_a_watch", "DistBackendError: rank [02]: int8 of bucket 0: .*rank 1", TIMEOUT)


class UnderTorchrun(Exits, unittest.TestCase):
    launcher = staticmethod(torchrun)
    grace = 30  # Seconds before it kills a stopped process.

    def code_of(self, _code):
        return 1

    def exit_text(self, code):
        return rf"rank +: 1 [^[]*exitcode +: {code} "


class WithoutLauncher(unittest.TestCase):
    """Nothing ends a rank here but the rank itself. Rank 0 serves the store."""

    def check_hung_rank(self, case, lost):
        with socket.socket() as any_port:
            any_port.bind(("127.0.0.1", 0))
            port = any_port.getsockname()[1]
        processes = [self.start(case, rank, port) for rank in range(3)]
        timer = threading.Timer(LIMIT, lambda: [each.kill() for each in processes])
        timer.start()
        while "ready" not in (line := processes[lost].stdout.readline()):
            self.assertTrue(line, "the rank has ended")
        begin = time.monotonic()
        for rank in {0, 1, 2} - {lost}:
            output, _ = processes[rank].communicate()
            self.assertRegex(output, LOST.format(rank, lost))
            self.assertEqual(processes[rank].returncode, 1, output)
            self.assertLess(time.monotonic() - begin, NOTICED + LATE, output)
        self.assertTrue(timer.is_alive())
        timer.cancel()

    def start(self, case, rank, port):
        place = {"RANK": rank, "LOCAL_RANK": rank, "WORLD_SIZE": 3, "LOCAL_WORLD_SIZE": 3, "MASTER_ADDR": "127.0.0.1",
                 "MASTER_PORT": port}
        process = subprocess.Popen([sys.executable, "-W", "ignore", str(RANK), case], text=True, stdin=subprocess.DEVNULL,
                                   stdout=subprocess.PIPE, stderr=subprocess.STDOUT,
                                   env={**os.environ, **{name: str(value) for name, value in place.items()}})
        self.addCleanup(lambda: (process.kill(), process.wait(), process.stdout.close()))
        return process

    def test_hung_rank(self):
        self.check_hung_rank("hung", 1)

    def test_hung_rank_that_serves_the_store(self):
        self.check_hung_rank("hung_first_rank", 0)


if __name__ == "__main__":
    unittest.main()

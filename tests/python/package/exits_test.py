"""How processes with hooks end, under narrowcast-run, under PyTorch's launcher torchrun, and without a launcher."""
import os
import pathlib
import re
import signal
import socket
import subprocess
import sys
import tempfile
import threading
import time
import unittest

from support import ending_rank

RANK = pathlib.Path(__file__).resolve().parents[1] / "support/ending_rank.py"
WORLD = 2
LIMIT = 180  # Seconds of a case, of which most start Python.
# Seconds in which the end of a process ends the others and the launcher, on a machine with other work. Less than the 120 s of
# the group's time-out, which a lost rank's peers must not wait for.
LATE = 30
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


def pids(output):
    return {rank: int(pid) for rank, pid in re.findall(r"pid of rank (\d): (\d+)", output)}


class Exits:
    """The cases in which the launcher has a part, and one in which it has none; not a test by itself."""

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
                    os.kill(pids(output)["1"], number)
        process.stdout.close()
        process.wait()
        seconds = None if ready is None else time.monotonic() - ready
        self.assertTrue(timer.is_alive(), output)
        timer.cancel()
        self.check_that_all_ended(output, world_size)
        return process.returncode, output, seconds

    def check_that_all_ended(self, output, world_size):
        processes = pids(output)
        self.assertEqual(len(processes), world_size, output)
        for rank, pid in processes.items():
            self.assertFalse(is_running(pid), f"rank {rank} remains")
        for text in ABORTS:
            self.assertNotIn(text, output)

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

    def test_group_that_is_not_destroyed(self):
        code, output, _ = self.run_case("end")
        self.assertEqual(code, 0, output)

    def test_bucket_that_the_other_rank_does_not_have(self):
        code, output, _ = self.run_case("in_flight")
        self.assertEqual(code, 0, output)
        self.assertIn("in flight: True", output)

    def test_outer_exchange_under_way(self):
        code, output, _ = self.run_case("diloco")
        self.assertEqual(code, 0, output)

    def test_exception_in_backward(self):
        self.check_failure("exception", 1, "KeyError: \"the model's own error\"")

    def test_exit_in_a_step(self):
        self.check_failure("system_exit", self.code_of(7), self.exit_text(7))

    def test_interrupt(self):
        self.check_failure("interrupted", self.code_of(-signal.SIGINT), "KeyboardInterrupt", number=signal.SIGINT)

    def test_hung_rank(self):
        """Another rank notices the stopped one and fails. The launcher ends the rest."""
        self.check_lost_rank("hung", 1, LOST.format("[02]", 1), NOTICED + self.grace + LATE)

    def test_killed_rank(self):
        self.check_lost_rank("killed", self.code_of(-signal.SIGKILL), self.exit_text(-signal.SIGKILL), LATE)


class UnderNarrowcastRun(Exits, unittest.TestCase):
    grace = 3  # Its default for --shutdown_timeout: seconds before it kills a stopped process.

    def launcher(self, world_size):
        return [os.environ["NARROWCAST_RUN"], f"--nproc_per_node={world_size}"]

    def code_of(self, code):
        return code if code >= 0 else 128 - code

    def exit_text(self, code):
        return rf"rank 1 \(pid \d+\) failed first: {f'exit code {code}' if code >= 0 else 'signal'}"

    def test_hung_rank_in_an_outer_step(self):
        self.check_lost_rank("hung_in_an_outer_step", 1, LOST.format("[02]", 1), NOTICED + self.grace + LATE)


class UnderTorchrun(Exits, unittest.TestCase):
    grace = 30  # Seconds before it kills a stopped process.

    def launcher(self, world_size):
        return [sys.executable, "-W", "ignore", "-m", "torch.distributed.run", f"--nproc_per_node={world_size}", "--standalone",
                "--no_python"]

    def code_of(self, _code):
        return 1

    def exit_text(self, code):
        return rf"rank +: 1 [^[]*exitcode +: {code} "


class WithoutLauncher(unittest.TestCase):
    """Nothing ends a rank here but the rank itself."""

    ranks = None  # The program that forks ranks. A case that must be killed takes it along.

    @classmethod
    def setUpClass(cls):
        cls.ranks = subprocess.Popen([sys.executable, "-W", "ignore", str(RANK)], text=True, stdin=subprocess.PIPE,
                                     stdout=subprocess.PIPE, stderr=subprocess.STDOUT, start_new_session=True)

    @classmethod
    def tearDownClass(cls):
        cls.ranks.stdin.close()
        cls.ranks.stdout.close()
        assert cls.ranks.wait() in (0, -signal.SIGKILL)

    def setUp(self):
        if self.ranks.poll() is not None:
            self.tearDownClass()
            self.setUpClass()

    def run_case(self, case, world_size, store, number=None):
        """Returns exit codes by rank, the output, and by rank the seconds from the line "ready" to its end. number: a signal
        for rank 1, once it is ready."""
        print(case, world_size, store, file=self.ranks.stdin, flush=True)
        timer = threading.Timer(LIMIT, os.killpg, (self.ranks.pid, signal.SIGKILL))
        timer.start()
        output, codes, seconds, ready = "", {}, {}, time.monotonic()
        for line in self.ranks.stdout:
            output += line
            if line == "ready\n":
                ready = time.monotonic()
                if number is not None:
                    os.kill(pids(output)["1"], number)
            elif match := re.fullmatch(r"end of rank (\d): (-?\d+)\n", line):
                rank = int(match[1])
                codes[rank], seconds[rank] = int(match[2]), time.monotonic() - ready
            elif line == "all ended\n":
                break
        self.assertTrue(timer.is_alive(), output)
        timer.cancel()
        self.assertEqual(len(pids(output)), world_size, output)
        for text in ABORTS:
            self.assertNotIn(text, output)
        return codes, output, seconds

    def check_codes(self, case, expected, number=None):
        with tempfile.TemporaryDirectory() as folder:
            codes, output, _ = self.run_case(case, WORLD, f"file://{folder}/store", number)
        self.assertEqual(codes, expected, output)
        return output

    def check_success(self, case, expected=""):
        output = self.check_codes(case, {0: 0, 1: 0})
        self.assertIn(expected, output)
        return output

    def check_hung_rank(self, case, lost=1, expected=LOST, noticed=NOTICED):
        """Rank 0 serves the store."""
        with socket.socket() as any_port:
            any_port.bind(("127.0.0.1", 0))
            port = any_port.getsockname()[1]
        codes, output, seconds = self.run_case(case, 3, f"tcp://127.0.0.1:{port}")
        self.assertEqual(codes, {rank: -signal.SIGKILL if rank == lost else 1 for rank in range(3)}, output)
        for rank in {0, 1, 2} - {lost}:
            self.assertRegex(output, expected.format(rank, lost))
            self.assertLess(seconds[rank], noticed + LATE, output)

    def test_exception_in_backward(self):
        output = self.check_codes("exception", {0: 1, 1: 1})
        self.assertEqual(output.count("KeyError: \"the model's own error\""), WORLD, output)

    def test_exit_in_a_step(self):
        self.check_codes("system_exit", {0: 1, 1: 7})

    def test_interrupt(self):
        output = self.check_codes("interrupted", {0: 1, 1: -signal.SIGINT}, number=signal.SIGINT)
        self.assertIn("KeyboardInterrupt", output)

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
        output = self.check_success("forked_child")
        self.assertEqual(output.count("child: 3"), WORLD, output)
        closed = sorted(int(pid) for pid in re.findall(r"closed by (\d+)", output))
        self.assertEqual(closed, sorted(pids(output).values()), output)

    def test_hung_rank(self):
        self.check_hung_rank("hung")

    def test_hung_rank_that_serves_the_store(self):
        self.check_hung_rank("hung_first_rank", lost=0)

    def test_hung_rank_of_a_node(self):
        self.check_hung_rank("hung_in_its_node")

    def test_hung_rank_in_an_outer_step(self):
        self.check_hung_rank("hung_in_an_outer_step")

    def test_hung_rank_in_a_collective_of_pytorch(self):
        self.check_hung_rank("hung_in_a_collective", expected=r"(?s)Warning: rank {}: rank {} is lost.*RuntimeError: Application timeout")

    def test_hung_rank_that_is_not_watched(self):
        self.check_hung_rank("hung_without_a_watch", expected=r"DistBackendError: rank {}: int8 of bucket 0: .*rank {}", noticed=TIMEOUT)


if __name__ == "__main__":
    unittest.main()

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

RANK = pathlib.Path(__file__).resolve().parents[1] / "support/ending_rank.py"
WORLD = 2
LIMIT = 60  # Seconds of a case, of which most start Python.
# torchrun waits for a stopped process before it kills it.
PATIENCE_OF_TORCHRUN = 30
ABORTS = ("terminate called", "Fatal Python error", "Aborted", "core dumped", "Segmentation fault")


class Exits:
    """The cases, for a launcher; not a test by itself."""

    def run_case(self, case, number=None, limit=LIMIT):
        """Runs it on two ranks, whose processes must all end in time and without an abort. Returns exit code and output.
        number: a signal for rank 1, once it is ready. limit: in seconds."""
        process = subprocess.Popen([*self.launcher(), sys.executable, "-W", "ignore", str(RANK), case], text=True,
                                   stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.STDOUT)
        begin = time.monotonic()
        timer = threading.Timer(limit, process.terminate)
        timer.start()
        output = ""
        if number is not None:
            for line in process.stdout:
                output += line
                if "ready" in line:
                    os.kill(self.pids(output)["1"], number)
                    break
        output += process.communicate()[0]
        timer.cancel()
        self.assertLess(time.monotonic() - begin, limit, output)
        self.check_that_all_ended(output)
        return process.returncode, output

    def pids(self, output):
        return {rank: int(pid) for rank, pid in re.findall(r"pid of rank (\d): (\d+)", output)}

    def check_that_all_ended(self, output):
        pids = self.pids(output)
        self.assertEqual(len(pids), WORLD, output)
        for rank, pid in pids.items():
            with self.assertRaises(ProcessLookupError, msg=f"rank {rank} remains"):
                os.kill(pid, 0)
        for text in ABORTS:
            self.assertNotIn(text, output)

    def check_success(self, case, expected=""):
        code, output = self.run_case(case)
        self.assertEqual(code, 0, output)
        self.assertIn(expected, output)

    def check_failure(self, case, code, expected, number=None, limit=LIMIT):
        actual, output = self.run_case(case, number, limit)
        self.assertEqual(actual, code, output)
        self.assertRegex(output, expected)

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
        code, output = self.run_case("forked_child")
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
        """The group's time-out ends the other rank, whose error names the stopped one. The launcher ends the stopped one."""
        self.check_failure("hung", 1, r"DistBackendError: rank 0: int8 of bucket 0: .*rank 1", limit=LIMIT + PATIENCE_OF_TORCHRUN)

    def test_killed_rank(self):
        self.check_failure("killed", self.code_of(-signal.SIGKILL), self.exit_text(-signal.SIGKILL))


class UnderNarrowcastRun(Exits, unittest.TestCase):
    def launcher(self):
        return [os.environ["NARROWCAST_RUN"], f"--nproc_per_node={WORLD}"]

    def code_of(self, code):
        return code if code >= 0 else 128 - code

    def exit_text(self, code):
        return rf"rank 1 \(pid \d+\) failed first: {f'exit code {code}' if code >= 0 else 'signal'}"


class UnderTorchrun(Exits, unittest.TestCase):
    def launcher(self):
        return [sys.executable, "-W", "ignore", "-m", "torch.distributed.run", f"--nproc_per_node={WORLD}", "--standalone",
                "--no_python"]

    def code_of(self, _code):
        return 1

    def exit_text(self, code):
        return rf"rank +: 1 [^[]*exitcode +: {code} "


if __name__ == "__main__":
    unittest.main()

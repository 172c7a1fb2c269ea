"""Tests with several processes that are the ranks of one process group."""
import contextlib
import multiprocessing
import os
import runpy
import socket
import sys
import tempfile
import unittest

import torch.distributed as dist


def end_with_result_of(case):
    """Runs the test case and ends the process: with code 0 if it passed, else 1."""
    result = unittest.TextTestRunner().run(case)
    if dist.is_initialized():
        dist.destroy_process_group()
    sys.stdout.flush()
    sys.stderr.flush()
    # A normal exit would abort: before CPython 3.14, the ending interpreter terminates every thread that needs it. If
    # one of a group's threads releases a tensor then, the process ends with "terminate called without an active
    # exception".
    os._exit(0 if result.wasSuccessful() else 1)


def _run_rank(rank, world_size, store, case):
    dist.init_process_group("gloo", store=dist.FileStore(store, world_size), rank=rank, world_size=world_size)
    end_with_result_of(case)


def _run_free_rank(rank, world_size, port, case):
    os.environ.update(RANK=str(rank), WORLD_SIZE=str(world_size), LOCAL_RANK=str(rank), LOCAL_WORLD_SIZE=str(world_size),
                      MASTER_ADDR="127.0.0.1", MASTER_PORT=str(port))
    end_with_result_of(case)


def run_on_ranks(world_size, case):
    """Runs a copy of the test case on each rank, with the default group. Returns their exit codes: 0 if it passed."""
    with tempfile.TemporaryDirectory() as folder:
        return _run(_run_rank, world_size, os.path.join(folder, "store"), case)


def run_on_free_ranks(world_size, case):
    """The same without a group. The ranks have the environment variables of a launcher."""
    with socket.socket() as any_port:
        any_port.bind(("127.0.0.1", 0))
        port = any_port.getsockname()[1]
    return _run(_run_free_rank, world_size, port, case)


class _Script(unittest.TestCase):
    """The program of one rank: a script. Its output goes to a file."""

    def __init__(self, script, arguments, output):
        super().__init__()
        self.script, self.arguments, self.output = script, arguments, output

    def runTest(self):
        sys.argv = [str(self.script), *map(str, self.arguments)]
        with open(f"{self.output}-{os.environ['RANK']}", "w", encoding="utf-8") as file, contextlib.redirect_stdout(file):
            runpy.run_path(sys.argv[0], run_name="__main__")


def run_script_on_ranks(test, world_size, script, *arguments):
    """Runs a training script on ranks that have imported torch: a launcher and its ranks would import it once each. Fails
    `test` if a rank does. Returns the output of rank 0."""
    with tempfile.TemporaryDirectory() as folder:
        output = os.path.join(folder, "output")
        test.assertEqual(run_on_free_ranks(world_size, _Script(script, arguments, output)), [0] * world_size)
        with open(f"{output}-0", encoding="utf-8") as file:
            return file.read()


def _run(run_rank, world_size, meeting, case):
    # Importing these modules takes each process 4 s of processor time. Ranks are forks of a server that has imported them
    # and has no other thread. The test itself may have threads of torch, and its children would wait for them forever.
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload(["torch._dynamo", "torch.distributed.fsdp", "narrowcast", "support.frozen"])
    ranks = [context.Process(target=run_rank, args=(rank, world_size, meeting, case)) for rank in range(world_size)]
    for process in ranks:
        process.start()
    for process in ranks:
        process.join()
    return [process.exitcode for process in ranks]

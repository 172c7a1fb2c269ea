"""Tests with several processes that are the ranks of one process group."""
import multiprocessing
import os
import sys
import tempfile
import unittest

import torch.distributed as dist


def end_with_result_of(case):
    """Runs the test case and ends the process: with code 0 if it passed, else 1."""
    result = unittest.TextTestRunner().run(case)
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


def run_on_ranks(world_size, case):
    """Runs a copy of the test case on each rank. Returns their exit codes: 0 if it passed."""
    # Importing these modules takes each process 4 s of processor time. Ranks are forks of a server that has imported them
    # and has no other thread. The test itself may have threads of torch, and its children would wait for them forever.
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload(["torch._dynamo", "torch.distributed.fsdp", "narrowcast"])
    with tempfile.TemporaryDirectory() as folder:
        store = os.path.join(folder, "store")
        ranks = [context.Process(target=_run_rank, args=(rank, world_size, store, case)) for rank in range(world_size)]
        for process in ranks:
            process.start()
        for process in ranks:
            process.join()
    return [process.exitcode for process in ranks]

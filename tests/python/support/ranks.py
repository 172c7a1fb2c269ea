"""Tests that several processes run as the ranks of one process group."""
import multiprocessing
import os
import sys
import tempfile
import unittest

import torch.distributed as dist


def _run_rank(rank, world_size, store, case):
    dist.init_process_group("gloo", store=dist.FileStore(store, world_size), rank=rank, world_size=world_size)
    result = unittest.TextTestRunner().run(case)
    dist.destroy_process_group()
    sys.stdout.flush()
    sys.stderr.flush()
    # Not by the interpreter's end, which before CPython 3.14 takes every thread away that asks for the interpreter then: one
    # of a group's threads that gives a tensor back ends the process with "terminate called without an active exception".
    os._exit(0 if result.wasSuccessful() else 1)


def run_on_ranks(world_size, case):
    """Lets each rank run its own copy of the test case. Returns their exit codes: 0 where it passed."""
    # Not forked: torch's threads would be missing in the children, which would wait for them for ever.
    context = multiprocessing.get_context("spawn")
    with tempfile.TemporaryDirectory() as folder:
        store = os.path.join(folder, "store")
        ranks = [context.Process(target=_run_rank, args=(rank, world_size, store, case)) for rank in range(world_size)]
        for process in ranks:
            process.start()
        for process in ranks:
            process.join()
    return [process.exitcode for process in ranks]

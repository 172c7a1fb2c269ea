#!/usr/bin/env python3
"""One rank of `run_python`: exchanges whole buckets with PyTorch's hooks, narrowcast's hooks and its operator in turns.
Rank 0 prints {way: [milliseconds of the slowest rank, for each iteration]} as JSON."""
import argparse
import dataclasses
import json
import os
import pathlib
import sys
import time

import torch
import torch.distributed as dist
from torch.distributed.algorithms.ddp_comm_hooks import default_hooks

from python_training import OF_NARROWCAST, load_narrowcast

OPERATOR = "operator."  # Prefix of the formats in which the operator averages.


@dataclasses.dataclass(frozen=True)
class Bucket:
    """What hooks ask of a dist.GradBucket, for one that holds all gradients."""
    gradients: torch.Tensor
    parameter: torch.Tensor

    def buffer(self):
        return self.gradients

    def index(self):
        return 0

    def is_last(self):
        return True

    def parameters(self):
        return [self.parameter]


def exchanges(ways, narrowcast):
    """Functions that average a bucket and wait for the mean, by the names of their ways."""
    group = dist.group.WORLD

    def of_hook(name):
        hook = narrowcast.CommHook(name).open("cpu")
        return lambda bucket: hook.run(bucket).wait()

    def of_operator(wire_format):
        return lambda bucket: narrowcast.all_reduce(bucket.buffer(), wire_format)

    known = {"allreduce": lambda bucket: default_hooks.allreduce_hook(group, bucket).wait(),
             "bf16_compress": lambda bucket: default_hooks.bf16_compress_hook(group, bucket).wait()}
    for way in ways:
        if way.startswith(OF_NARROWCAST):
            known[way] = of_hook(way.removeprefix(OF_NARROWCAST))
        elif way.startswith(OPERATOR):
            known[way] = of_operator(way.removeprefix(OPERATOR))
    return {way: known[way] for way in ways}


def milliseconds(exchange, bucket):
    dist.barrier()
    began = time.perf_counter()
    exchange(bucket)
    return 1e3 * (time.perf_counter() - began)


def measure(ways, iterations, warm_up, numel):
    """The milliseconds of this rank by way."""
    values = torch.randn(numel, generator=torch.Generator().manual_seed(dist.get_rank()))
    bucket = Bucket(torch.empty(numel), torch.zeros(numel))
    times = {way: [] for way in ways}
    for iteration in range(-warm_up, iterations):
        for turn in range(len(ways)):
            way, exchange = list(ways.items())[(turn + iteration) % len(ways)]
            bucket.gradients.copy_(values)
            taken = milliseconds(exchange, bucket)
            if iteration >= 0:
                times[way].append(taken)
    return times


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--libraries", required=True, help="folder of libnarrowcast_classes.so")
    parser.add_argument("--ways", required=True, help="separated by commas")
    parser.add_argument("--bytes", type=int, required=True, help="of a bucket in float32")
    parser.add_argument("--iterations", type=int, required=True)
    parser.add_argument("--warm_up", type=int, default=2)
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    narrowcast = load_narrowcast(arguments.libraries)
    dist.init_process_group("gloo")
    times = measure(exchanges(arguments.ways.split(","), narrowcast), arguments.iterations, arguments.warm_up, arguments.bytes // 4)
    slowest = torch.tensor(list(times.values()), dtype=torch.float64)
    dist.all_reduce(slowest, dist.ReduceOp.MAX)
    if dist.get_rank() == 0:
        print(json.dumps(dict(zip(times, slowest.tolist()))), flush=True)
    dist.barrier()
    os._exit(0)  # Gloo's threads may still be releasing tensors of PyTorch's own hooks: see python_training.py.


if __name__ == "__main__":
    sys.exit(main())

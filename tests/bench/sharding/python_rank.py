#!/usr/bin/env python3
"""One rank of a training in Python that `compare` measures beside narrowcast-train: a GPT of the same shape, with
PyTorch's AdamW and one of PyTorch's ways to average gradients. Rank 0 writes metrics.jsonl in the form of
narrowcast-train, a line after each step."""
import argparse
import array
import json
import os
import pathlib
import sys
import time

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard
from torch.distributed.optim import ZeroRedundancyOptimizer
from torch.nn.parallel import DistributedDataParallel

sys.path.append(str(pathlib.Path(__file__).resolve().parents[1] / "network"))
import python_training  # noqa: E402 -- found by the line above

KINDS = ("ddp", "zero", "fsdp2")


def parse_arguments():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--kind", choices=KINDS, required=True)
    parser.add_argument("--data", type=pathlib.Path, required=True, help="folder of token files")
    parser.add_argument("--output_dir", type=pathlib.Path, required=True)
    for flag in ("layers", "heads", "width", "context", "vocabulary", "batch_size", "steps"):
        parser.add_argument(f"--{flag}", type=int, required=True)
    parser.add_argument("--gradient_as_bucket_view", action="store_true")
    return parser.parse_args()


def in_fsdp(arguments):
    """The model, of which each rank only ever allocates its shards."""
    with torch.device("meta"):
        model = python_training.CharGpt(arguments, arguments.vocabulary)
    mesh = init_device_mesh("cpu", (dist.get_world_size(),))
    for part in (*model.blocks, model):
        fully_shard(part, mesh=mesh)
    model.to_empty(device="cpu")
    for name, parameter in model.named_parameters():
        shard = parameter.to_local().detach()
        if parameter.dim() > 1:
            shard.normal_(std=.02)
        else:
            shard.fill_(1 if name.endswith("norm.weight") else 0)
    return model


def in_ddp(arguments):
    model = python_training.CharGpt(arguments, arguments.vocabulary)
    return DistributedDataParallel(model, gradient_as_bucket_view=arguments.gradient_as_bucket_view)


def make_optimizer(arguments, model):
    groups = python_training.parameter_groups(model)
    options = {"lr": 1e-3, "betas": (.9, .99), "fused": True}  # The fused step is the fastest, and needs no memory.
    if arguments.kind == "zero":
        return ZeroRedundancyOptimizer(groups, torch.optim.AdamW, **options)
    return torch.optim.AdamW(groups, **options)


def seconds_of_steps(arguments, tokens):
    """Yields the total time of all steps so far, after each step. A step ends when all ranks know its mean loss."""
    model = in_fsdp(arguments) if arguments.kind == "fsdp2" else in_ddp(arguments)
    optimizer = make_optimizer(arguments, model)
    windows = tokens.unfold(0, arguments.context + 1, 1)
    began = time.perf_counter()
    for _ in range(arguments.steps):
        batch = windows[torch.randint(len(windows), (arguments.batch_size // dist.get_world_size(),))]
        optimizer.zero_grad()
        loss = nn.functional.cross_entropy(model(batch[:, :-1]).flatten(0, 1), batch[:, 1:].flatten())
        loss.backward()
        nn.utils.clip_grad_norm_(model.parameters(), 1)
        optimizer.step()
        dist.all_reduce(loss.detach())
        yield time.perf_counter() - began


def main():
    arguments = parse_arguments()
    torch.set_num_threads(1)
    tokens = torch.tensor(array.array("H", (arguments.data / "train.bin").read_bytes()))
    dist.init_process_group("gloo")
    torch.manual_seed(dist.get_rank())
    is_rank_0 = dist.get_rank() == 0
    if is_rank_0:
        arguments.output_dir.mkdir()
    with open(arguments.output_dir / "metrics.jsonl" if is_rank_0 else os.devnull, "w", buffering=1) as file:
        for step, seconds in enumerate(seconds_of_steps(arguments, tokens.long()), 1):
            file.write(json.dumps({"event": "step", "step": step, "seconds": seconds}) + "\n")
    dist.barrier()
    sys.stdout.flush()
    os._exit(0)  # Gloo's threads may still be releasing tensors, which makes a normal end of Python abort.


if __name__ == "__main__":
    main()

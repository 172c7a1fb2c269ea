"""PyTorch's DistributedDataParallel whose ranks share the state of AdamW: each holds that of its shard of the parameters.

  torchrun --nproc_per_node=2 --standalone sharded_optimizer_from_python.py --data=README.md

Within nodes or, with --hook=int8, over all ranks.
"""
import argparse
import pathlib

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel

import narrowcast

parser = argparse.ArgumentParser()
parser.add_argument("--data", required=True, help="any file")
parser.add_argument("--steps", type=int, default=200)
parser.add_argument("--hook", help="of narrowcast: share over all ranks, which it averages for")
parser.add_argument("--output", help="a file for a checkpoint")
arguments = parser.parse_args()
dist.init_process_group("gloo")
text = torch.frombuffer(bytearray(pathlib.Path(arguments.data).read_bytes()), dtype=torch.uint8).long()
torch.manual_seed(dist.get_rank())  # Each rank draws different bytes. Parameters are rank 0's.
ddp = DistributedDataParallel(nn.Sequential(nn.Embedding(256, 32), nn.Flatten(), nn.Linear(512, 512), nn.ReLU(), nn.Linear(512, 256)))
if arguments.hook:
    hook = narrowcast.register(ddp, arguments.hook)  # Such as "int8".
    optimizer = narrowcast.ShardedOptimizer(ddp.parameters(), torch.optim.AdamW, lr=3e-3, hook=hook)
else:
    optimizer = narrowcast.ShardedOptimizer(ddp.parameters(), torch.optim.AdamW, lr=3e-3)
for step in range(arguments.steps):
    windows = text.unfold(0, 17, 1)[torch.randint(len(text) - 16, (64,))]
    loss = nn.functional.cross_entropy(ddp(windows[:, :-1]), windows[:, -1])
    optimizer.zero_grad()
    loss.backward()
    optimizer.clip_grad_norm_(1.)
    optimizer.step()
    if dist.get_rank() == 0 and (step % 20 == 0 or step + 1 == arguments.steps):
        print(f"step {step + 1}: loss {loss.item():.3f}", flush=True)
if arguments.output:
    optimizer.consolidate_state_dict()  # Rank 0 gets the whole state.
    if dist.get_rank() == 0:
        torch.save({"model": ddp.module.state_dict(), "optimizer": optimizer.state_dict()}, arguments.output)
if dist.get_rank() == 0:
    print(f"{optimizer.shards} shards, rank 0 steps {optimizer.own_elements} of {optimizer.elements} elements")
dist.destroy_process_group()

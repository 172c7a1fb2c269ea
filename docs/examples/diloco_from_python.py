"""DiLoCo in Python: ranks take 20 steps of their own, and then exchange how far they moved.

  torchrun --nproc_per_node=2 --standalone diloco_from_python.py --data=README.md --node_size=1
"""
import argparse
import pathlib

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel

import narrowcast

CONTEXT = 16  # Bytes of the model's input.


def train(arguments):
    text = torch.frombuffer(bytearray(pathlib.Path(arguments.data).read_bytes()), dtype=torch.uint8).long()
    model = nn.Sequential(nn.Embedding(256, 32), nn.Flatten(), nn.Linear(32 * CONTEXT, 512), nn.ReLU(), nn.Linear(512, 256))
    torch.manual_seed(dist.get_rank())  # Each rank draws different bytes.
    optimizer = narrowcast.DiLoCo(torch.optim.AdamW(model.parameters(), lr=3e-3), sync_every=20, outer_format="int8_b128",
                                  outer_warmup=arguments.warmup, node_size=arguments.node_size)
    forward = model
    if arguments.warmup:  # All ranks average their gradients in the first steps.
        forward = DistributedDataParallel(model)
        narrowcast.register(forward, "post_local_sgd", outer_warmup=arguments.warmup, local_group="none")
    for step in range(arguments.steps):
        windows = text.unfold(0, CONTEXT + 1, 1)[torch.randint(len(text) - CONTEXT, (64,))]
        loss = nn.functional.cross_entropy(forward(windows[:, :-1]), windows[:, -1])
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        if dist.get_rank() == 0 and (step % 20 == 0 or step + 1 == arguments.steps):
            print(f"step {step + 1}: loss {loss.item():.3f}", flush=True)
    optimizer.finish()
    if dist.get_rank() == 0:
        print(f"{optimizer.exchanges} exchanges sent {optimizer.payload_bytes_sent} bytes")


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--data", required=True, help="any file")
    parser.add_argument("--node_size", type=int, help="ranks of a node (default: found)")
    parser.add_argument("--steps", type=int, default=200)
    parser.add_argument("--warmup", type=int, default=0, help="first steps, in which gradients are averaged")
    arguments = parser.parse_args()
    dist.init_process_group("gloo")
    train(arguments)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()

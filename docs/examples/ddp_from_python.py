"""PyTorch's DistributedDataParallel with gradients that narrowcast averages. It learns to predict the byte that follows 16
others.

  torchrun --nproc_per_node=2 --standalone ddp_from_python.py --data=README.md --hook=int8 --node_size=1
"""
import argparse
import os
import pathlib

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel

import narrowcast

CONTEXT = 16  # Bytes of the model's input.


def train(arguments, device):
    text = torch.frombuffer(bytearray(pathlib.Path(arguments.data).read_bytes()), dtype=torch.uint8).long()
    torch.manual_seed(dist.get_rank())  # Each rank draws different bytes. Parameters are rank 0's.
    model = nn.Sequential(nn.Embedding(256, 32), nn.Flatten(), nn.Linear(32 * CONTEXT, 512), nn.ReLU(), nn.Linear(512, 256))
    model = DistributedDataParallel(model.to(device), bucket_cap_mb=arguments.bucket_cap_mb)
    hook = narrowcast.register(model, arguments.hook, node_size=arguments.node_size)
    optimizer = torch.optim.AdamW(model.parameters(), lr=3e-3)
    for step in range(arguments.steps):
        windows = text.unfold(0, CONTEXT + 1, 1)[torch.randint(len(text) - CONTEXT, (64,))].to(device)
        loss = nn.functional.cross_entropy(model(windows[:, :-1]), windows[:, -1])
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        if dist.get_rank() == 0 and (step % 20 == 0 or step + 1 == arguments.steps):
            print(f"step {step + 1}: loss {loss.item():.3f}", flush=True)
    mean = narrowcast.all_reduce(loss.detach().clone(), "fp32").item()  # Over all ranks, which call it together.
    if dist.get_rank() == 0:  # Ranks of one node average in its memory; --node_size=1 makes each rank a node.
        print(f"hook {hook.name}, nodes {hook.nodes}: mean loss {mean:.3f}, rank 0 sent {hook.payload_bytes_sent / 1e6:.1f} MB "
              f"{hook.decision}")


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--data", required=True, help="any file")
    parser.add_argument("--hook", default="auto", choices=[name for name in narrowcast.hook_names() if name != "none"])
    parser.add_argument("--node_size", type=int, help="ranks of a node (default: found)")
    parser.add_argument("--bucket_cap_mb", type=float, default=25)
    parser.add_argument("--steps", type=int, default=200)
    arguments = parser.parse_args()
    device = torch.device("cuda", int(os.environ["LOCAL_RANK"])) if torch.cuda.is_available() else torch.device("cpu")
    if device.type == "cuda":
        torch.cuda.set_device(device)
    dist.init_process_group()  # Gloo for tensors on the CPU and NCCL for those on GPUs.
    train(arguments, device)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()

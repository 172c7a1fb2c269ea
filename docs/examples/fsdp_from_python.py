"""PyTorch's fully_shard with gradients that are sent in one of narrowcast's wire formats. The
training is that of ddp_from_python.py.

  torchrun --nproc_per_node=2 --standalone fsdp_from_python.py --data=README.md
"""
import argparse
import pathlib

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard

from narrowcast.fsdp import QuantizedReduceScatter

CONTEXT = 16  # Bytes of the model's input.


def train(arguments):
    text = torch.frombuffer(bytearray(pathlib.Path(arguments.data).read_bytes()), dtype=torch.uint8).long()
    device = "cuda" if torch.cuda.is_available() else "cpu"
    mesh = init_device_mesh(device, (dist.get_world_size(),))
    torch.manual_seed(0)  # All ranks begin with the same parameters.
    model = nn.Sequential(nn.Embedding(256, 32), nn.Flatten(), nn.Linear(32 * CONTEXT, 512), nn.ReLU(), nn.Linear(512, 256))
    for part in (model[2], model[4], model):  # The model itself gets the remaining parameters.
        fully_shard(part, mesh=mesh)
        part.set_custom_reduce_scatter(QuantizedReduceScatter(arguments.format))
    optimizer = torch.optim.AdamW(model.parameters(), lr=3e-3)
    torch.manual_seed(dist.get_rank())  # Each rank draws different bytes.
    for step in range(arguments.steps):
        windows = text.unfold(0, CONTEXT + 1, 1)[torch.randint(len(text) - CONTEXT, (64,))].to(device)
        loss = nn.functional.cross_entropy(model(windows[:, :-1]), windows[:, -1])
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        if dist.get_rank() == 0 and (step % 20 == 0 or step + 1 == arguments.steps):
            print(f"step {step + 1}: loss {loss.item():.3f}", flush=True)


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--data", required=True, help="any file")
    parser.add_argument("--format", default="int8_b128", help="a wire format, as docs/reference/operators.md has them")
    parser.add_argument("--steps", type=int, default=200)
    arguments = parser.parse_args()
    dist.init_process_group()
    train(arguments)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()

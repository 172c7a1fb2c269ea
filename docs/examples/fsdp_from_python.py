"""PyTorch's fully_shard with gradients that are sent in one of narrowcast's wire formats. Copy QuantizedReduceScatter. The
rest is a training to try it with, as in ddp_from_python.py.
  torchrun --nproc_per_node=2 --standalone fsdp_from_python.py --library=libnarrowcast_ops.so --data=README.md
"""
import argparse
import pathlib

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard

CONTEXT = 16  # Bytes of the model's input.


class QuantizedReduceScatter:
    """A reduce-scatter in one hop. Each rank encodes its part of every rank's shard and sends it to the shard's rank. That
    rank decodes all parts, including its own, and sums them in float32. So each rank sends (W-1)/W of its gradients, rounded
    once."""

    def __init__(self, wire_format):
        self._wire_format = wire_format
        self._compared = False

    def allocate(self, size, *, dtype, device):
        return torch.empty(*size, dtype=dtype, device=device)

    def __call__(self, output_tensor, input_tensor, group, op, async_op=False):
        if op not in (dist.ReduceOp.AVG, dist.ReduceOp.SUM):
            raise ValueError(f"op must be a mean or a sum, but is {op}: set_gradient_divide_factor is not supported")
        world_size = dist.get_world_size(group)
        if not self._compared:  # Messages of other sizes would abort the process inside Gloo.
            self._compare_formats(group)
        parts = input_tensor.chunk(world_size)
        messages = torch.stack([torch.ops.narrowcast.encode(part, self._wire_format) for part in parts])
        received = torch.empty_like(messages)
        dist.all_to_all_single(received, messages, group=group)
        decoded = [torch.ops.narrowcast.decode(each, self._wire_format, output_tensor.numel()) for each in received]
        total = torch.stack(decoded).sum(0)
        # fully_shard requests the mean; for float16 it requests a sum, which it divides.
        output_tensor.copy_(total / world_size if op == dist.ReduceOp.AVG else total)

    def _compare_formats(self, group):
        """Raises a ValueError on all ranks of the group if their formats differ."""
        formats = [None] * dist.get_world_size(group)
        dist.all_gather_object(formats, self._wire_format, group=group)
        for rank, wire_format in enumerate(formats):
            if wire_format != formats[0]:
                first, other = (dist.get_global_rank(group or dist.group.WORLD, each) for each in (0, rank))
                raise ValueError(f"QuantizedReduceScatter: format is {wire_format} on rank {other} but {formats[0]} on rank {first}")
        self._compared = True


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
    parser.add_argument("--library", required=True, help="path of libnarrowcast_ops.so")
    parser.add_argument("--data", required=True, help="any file")
    parser.add_argument("--format", default="int8_b128", help="a wire format, as docs/reference/operators.md has them")
    parser.add_argument("--steps", type=int, default=200)
    arguments = parser.parse_args()
    torch.ops.load_library(arguments.library)
    dist.init_process_group()
    train(arguments)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()

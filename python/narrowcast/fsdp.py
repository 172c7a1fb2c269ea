"""Gradients of fully_shard (FSDP2) in a wire format."""
from typing import Optional, Sequence

import torch
import torch.distributed as dist


class QuantizedReduceScatter:
    """A reduce-scatter in one hop, for `module.set_custom_reduce_scatter(QuantizedReduceScatter("int8_b128"))`.

    Each rank encodes its part of every rank's shard and sends it to the shard's rank. That rank decodes all parts, including its
    own, and sums them in float32. So each rank sends (W-1)/W of its gradients, rounded once. Raises ValueError on all ranks if
    formats differ, and for an operation that is neither the mean nor the sum (set_gradient_divide_factor)."""

    def __init__(self, wire_format: str = "int8_b128") -> None:
        torch.ops.narrowcast.encoded_size(1, wire_format)  # An unknown format is a ValueError.
        self._wire_format = wire_format
        self._compared = False

    def allocate(self, size: Sequence[int], *, dtype: torch.dtype, device: torch.device) -> torch.Tensor:
        """The memory for a shard or its parts."""
        return torch.empty(*size, dtype=dtype, device=device)

    def __call__(self, output_tensor: torch.Tensor, input_tensor: torch.Tensor, group: Optional[dist.ProcessGroup],
                 op: dist.ReduceOp, async_op: bool = False) -> None:
        """Called by fully_shard: output_tensor [n] becomes this rank's shard of the mean or sum of input_tensor [W n]."""
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

    def _compare_formats(self, group: Optional[dist.ProcessGroup]) -> None:
        formats: list[str] = [""] * dist.get_world_size(group)
        dist.all_gather_object(formats, self._wire_format, group=group)
        for rank, wire_format in enumerate(formats):
            if wire_format != formats[0]:
                first, other = (dist.get_global_rank(group or dist.group.WORLD, each) for each in (0, rank))
                raise ValueError(f"QuantizedReduceScatter: format is {wire_format} on rank {other} but {formats[0]} on rank {first}")
        self._compared = True

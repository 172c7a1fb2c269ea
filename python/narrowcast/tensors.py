"""Tensors in wire formats, and their mean over ranks."""
from typing import Optional

import torch
import torch.distributed as dist

from narrowcast._group import group_or_default


def encode(tensor: torch.Tensor, format: str = "int8_b128") -> torch.Tensor:
    """The bytes, uint8 [n], of a float tensor in a wire format: docs/reference/operators.md lists them."""
    return torch.ops.narrowcast.encode(tensor, format)


def decode(message: torch.Tensor, format: str, numel: int) -> torch.Tensor:
    """The inverse of encode: float32 [numel]."""
    return torch.ops.narrowcast.decode(message, format, numel)


def all_reduce(tensor: torch.Tensor, format: str = "int8_b128", group: Optional[dist.ProcessGroup] = None,
               levels: str = "auto") -> torch.Tensor:
    """Replaces a float tensor of any shape by its mean over the ranks of `group`, sent in a wire format. Returns it. A
    collective, which waits. With levels "auto", ranks that share a node average in its memory first, and only nodes
    send messages; "one" never does so, and "two" raises ValueError where it is impossible. The formats "top2_15" and
    "top2_31" drop most elements, which the caller must keep and add to the next tensor. Raises ValueError on all ranks
    if formats, levels or sizes differ between ranks, and torch.distributed.DistBackendError if a rank or the network
    fails."""
    torch.ops.narrowcast.quantized_all_reduce_(tensor, format, group_or_default(group).group_name, levels)
    return tensor

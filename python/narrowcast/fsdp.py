"""Gradients of fully_shard (FSDP2) in a wire format."""
from typing import TYPE_CHECKING, Optional, Sequence, Union

import torch
import torch.distributed as dist

from narrowcast._group import group_or_default

if TYPE_CHECKING:
    from torch.distributed.fsdp._fully_shard._fsdp_api import ReduceScatter
else:
    try:  # A private module of torch.
        from torch.distributed.fsdp._fully_shard._fsdp_api import ReduceScatter
    except ImportError:
        ReduceScatter = object


class QuantizedReduceScatter(ReduceScatter):
    """A reduce-scatter in one hop, for `module.set_custom_reduce_scatter(QuantizedReduceScatter("int8_b128"))`.

    Each rank sends (W-1)/W of its gradients, rounded once. The operator `quantized_reduce_scatter_` does the work without
    the interpreter's lock: docs/reference/operators.md describes it. The constructor raises ValueError for an unknown
    format, and for a sparse one, which needs error feedback. A call raises ValueError on all ranks if formats differ, and for an
    operation that is neither the mean nor the sum (set_gradient_divide_factor)."""

    def __init__(self, wire_format: str = "int8_b128") -> None:
        if torch.ops.narrowcast.is_sparse_format(wire_format):  # An unknown format is a ValueError.
            raise ValueError(f"wire_format: {wire_format} drops most elements of each gradient, and fully_shard has no error "
                             "feedback, which would send them later; use a format such as int8_b128")
        self._wire_format = wire_format

    def allocate(self, size: Sequence[Union[int, torch.SymInt]], *, dtype: torch.dtype, device: torch.device) -> torch.Tensor:
        """The memory for a shard or its parts."""
        return torch.empty(*size, dtype=dtype, device=device)

    def __call__(self, output_tensor: torch.Tensor, input_tensor: torch.Tensor, group: Optional[dist.ProcessGroup],
                 op: Union[dist.ReduceOp, dist.ReduceOp.RedOpType], async_op: bool = False) -> None:
        """Called by fully_shard: output_tensor [n] becomes this rank's shard of the mean or sum of input_tensor [W n]."""
        if async_op:
            raise ValueError("async_op must be False: fully_shard does not set it, and there is no work to return")
        torch.ops.narrowcast.quantized_reduce_scatter_(output_tensor, input_tensor, self._wire_format, _name_of(op),
                                                       group_or_default(group).group_name)


def _name_of(op: Union[dist.ReduceOp, dist.ReduceOp.RedOpType]) -> str:
    # fully_shard requests the mean. For float16 and float64 it requests the sum and divides.
    if op == dist.ReduceOp.AVG:
        return "mean"
    if op == dist.ReduceOp.SUM:
        return "sum"
    # Not an error here: the operator raises it on all ranks.
    return f"{op} (set_gradient_divide_factor needs set_force_sum_reduction_for_comms)"

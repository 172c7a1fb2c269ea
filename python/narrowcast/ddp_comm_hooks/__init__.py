"""torch.distributed.algorithms.ddp_comm_hooks with hooks that run in C++: change this one import.

    from narrowcast.ddp_comm_hooks import DDPCommHookType, register_ddp_comm_hook
    register_ddp_comm_hook(DDPCommHookType.QUANTIZE_PER_CHANNEL, ddp)

All public names of PyTorch's package are here, in modules of the same names. noop_hook and the functions of ddp_zero_hook and
optimizer_overlap_hooks are PyTorch's own, and take narrowcast's hooks. mixed_precision_hooks, which has no public names, raises
ImportError.

The hooks give the same bits as PyTorch's; PowerSGD does with one or two ranks, and adds in another order with more. PowerSGD
inside fp16_compress_wrapper computes in float32.
DDPCommHookType also has narrowcast's own formats."""
import enum
import functools
import sys
from typing import Any, Optional

import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel

from narrowcast._options import wrong
from narrowcast.comm_hook import CommHook, register
from narrowcast.ddp_comm_hooks import debugging_hooks as debugging  # noqa: F401  PyTorch's package has these names, too.
from narrowcast.ddp_comm_hooks import default_hooks as default  # noqa: F401
from narrowcast.ddp_comm_hooks import optimizer_overlap_hooks as optimizer_overlap  # noqa: F401
from narrowcast.ddp_comm_hooks import powerSGD_hook as powerSGD
from narrowcast.ddp_comm_hooks import quantization_hooks as quantization  # noqa: F401

__all__ = ["DDPCommHookType", "register_ddp_comm_hook"]


def _register(name: str, model: DistributedDataParallel, state: Optional[dist.ProcessGroup] = None, **options: Any) -> CommHook:
    return register(model, name, process_group=state, **options)


def _register_power_sgd(name: str, model: DistributedDataParallel, state: Optional[dist.ProcessGroup] = None,
                        matrix_approximation_rank: int = 1, start_powerSGD_iter: int = 1_000, **options: Any) -> CommHook:
    options = {"power_sgd_rank": matrix_approximation_rank, "power_sgd_start": start_powerSGD_iter,
               "power_sgd_memory": "averaged", **options}
    try:
        powerSGD.check_start(start_powerSGD_iter)
    except (TypeError, ValueError) as error:  # An error on all ranks.
        options = wrong(error)
    return register(model, name, process_group=state, **options)


def _member(name: str) -> Any:
    return _as_member(functools.partial(_register, name))


def _power_sgd_member(name: str, matrix_approximation_rank: int) -> Any:
    return _as_member(functools.partial(_register_power_sgd, name, matrix_approximation_rank=matrix_approximation_rank))


def _as_member(registers: "functools.partial[CommHook]") -> Any:
    return enum.member(registers) if sys.version_info >= (3, 11) else registers  # Older ones take it as a member anyway.


class DDPCommHookType(enum.Enum):
    """The hooks. `DDPCommHookType.NAME.value(model=model, state=process_group)` registers one, and returns its CommHook;
    without a group the model's is used. Further arguments are options of CommHook and, for PowerSGD, PyTorch's
    matrix_approximation_rank and start_powerSGD_iter."""

    ALLREDUCE = _member("allreduce")
    FP16_COMPRESS = _member("fp16_compress")
    BF16_COMPRESS = _member("bf16_compress")
    QUANTIZE_PER_TENSOR = _member("quantize_per_tensor")
    QUANTIZE_PER_CHANNEL = _member("quantize_per_channel")
    POWER_SGD = _power_sgd_member("power_sgd", 1)
    POWER_SGD_RANK2 = _power_sgd_member("power_sgd_rank2", 2)
    BATCHED_POWER_SGD = _power_sgd_member("batched_power_sgd", 1)
    BATCHED_POWER_SGD_RANK2 = _power_sgd_member("batched_power_sgd_rank2", 2)
    NOOP = _member("noop")
    # PyTorch does not have these.
    AUTO = _member("auto")
    INT8 = _member("int8")
    INT6 = _member("int6")
    INT4 = _member("int4")
    FP8 = _member("fp8")
    VAR6 = _member("var6")
    VAR5 = _member("var5")
    VAR4 = _member("var4")
    VAR3 = _member("var3")


def register_ddp_comm_hook(comm_hook_type: DDPCommHookType, model: DistributedDataParallel,
                           state: Optional[dist.ProcessGroup] = None) -> None:
    """Registers that hook with the model. `state`: the process group whose ranks average; by default the model's."""
    if not isinstance(comm_hook_type, DDPCommHookType):
        raise TypeError("comm_hook_type: must be a member of narrowcast.ddp_comm_hooks.DDPCommHookType, such as DDPCommHookType.INT8, "
                        f"but is {comm_hook_type!r}")
    comm_hook_type.value(model=model, state=state)

"""torch.distributed.algorithms.ddp_comm_hooks, name by name, with hooks that run in C++: change this one import.

    from narrowcast.ddp_comm_hooks import DDPCommHookType, register_ddp_comm_hook
    register_ddp_comm_hook(DDPCommHookType.QUANTIZE_PER_CHANNEL, ddp)

The hooks give the same bits as PyTorch's; PowerSGD does with one or two ranks, and adds in another order with more. PowerSGD
inside fp16_compress_wrapper computes in float32.
DDPCommHookType also has narrowcast's own formats."""
import enum
import functools
import sys
from typing import Any, Optional

import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel

from narrowcast.comm_hook import CommHook, register

__all__ = ["DDPCommHookType", "register_ddp_comm_hook"]


def _register(name: str, model: DistributedDataParallel, state: Optional[dist.ProcessGroup] = None, **options: Any) -> CommHook:
    return register(model, name, process_group=state, **options)


def _member(name: str, **options: Any) -> Any:
    registers = functools.partial(_register, name, **options)
    return enum.member(registers) if sys.version_info >= (3, 11) else registers  # Older ones take it as a member anyway.


class DDPCommHookType(enum.Enum):
    """The hooks. `DDPCommHookType.NAME.value(model=model, state=process_group)` registers one, and returns its CommHook;
    without a group the model's is used."""

    ALLREDUCE = _member("allreduce")
    FP16_COMPRESS = _member("fp16_compress")
    BF16_COMPRESS = _member("bf16_compress")
    QUANTIZE_PER_TENSOR = _member("quantize_per_tensor")
    QUANTIZE_PER_CHANNEL = _member("quantize_per_channel")
    POWER_SGD = _member("power_sgd", power_sgd_memory="averaged")
    POWER_SGD_RANK2 = _member("power_sgd_rank2", power_sgd_memory="averaged")
    BATCHED_POWER_SGD = _member("batched_power_sgd", power_sgd_memory="averaged")
    BATCHED_POWER_SGD_RANK2 = _member("batched_power_sgd_rank2", power_sgd_memory="averaged")
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
    comm_hook_type.value(model=model, state=state)

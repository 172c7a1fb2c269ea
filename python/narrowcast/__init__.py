"""Data-parallel training that sends a quarter of the bytes.

    ddp = torch.nn.parallel.DistributedDataParallel(model)
    narrowcast.register(ddp, "int8")     # or "auto", "var5", "power_sgd", ...

- register, CommHook, comm_hook: communication hooks of DistributedDataParallel;
- ddp_comm_hooks: the same under the names of torch.distributed.algorithms.ddp_comm_hooks;
- fsdp: gradients of fully_shard;
- DiLoCo: training with few exchanges;
- ElasticGroup: training that goes on when a rank is lost;
- ShardedOptimizer: an optimizer whose state the ranks of a node share;
- all_reduce, encode, decode: tensors.
"""
import torch

from narrowcast import _library

_library.load()
__version__: str = torch.ops.narrowcast.version()

# The libraries must be loaded first: these modules use what they register.
from narrowcast import ddp_comm_hooks, fsdp  # noqa: E402
from narrowcast.comm_hook import CommHook, comm_hook, hook_names, register  # noqa: E402
from narrowcast.elastic import ElasticGroup, ElasticRecovery  # noqa: E402
from narrowcast.outer import DiLoCo  # noqa: E402
from narrowcast.sharded_optimizer import ShardedOptimizer  # noqa: E402
from narrowcast.tensors import all_reduce, decode, encode  # noqa: E402

__all__ = ["CommHook", "DiLoCo", "ElasticGroup", "ElasticRecovery", "ShardedOptimizer", "all_reduce", "comm_hook",
           "ddp_comm_hooks", "decode", "encode", "fsdp", "hook_names", "register"]

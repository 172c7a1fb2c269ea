"""torch.distributed.algorithms.ddp_comm_hooks.optimizer_overlap_hooks, which has no public names: the private ones that take a
hook, also one of narrowcast."""
from torch.distributed.algorithms.ddp_comm_hooks.optimizer_overlap_hooks import (  # noqa: F401
    _hook_then_optimizer, _OptimizerHookState)

__all__: list[str] = []


def __getattr__(name: str) -> object:
    if name in ("_OptimInBackwardHookState", "_apply_optim_in_backward_hook"):
        raise AttributeError(f"narrowcast has no {name}, because it averages with PyTorch's all-reduce and not with a hook: use "
                             "torch.distributed.algorithms.ddp_comm_hooks.optimizer_overlap_hooks")
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")

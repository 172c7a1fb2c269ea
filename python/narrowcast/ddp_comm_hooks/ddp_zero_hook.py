"""torch.distributed.algorithms.ddp_comm_hooks.ddp_zero_hook: PyTorch's functions, which take hooks of narrowcast, too. They refuse
Gloo."""
from torch.distributed.algorithms.ddp_comm_hooks.ddp_zero_hook import hook_with_zero_step, hook_with_zero_step_interleaved

__all__ = ["hook_with_zero_step", "hook_with_zero_step_interleaved"]

"""torch.distributed.algorithms.ddp_comm_hooks.powerSGD_hook."""
import logging
from typing import Any, Optional, Union

import torch
import torch.distributed as dist

from narrowcast._options import Option, wrong
from narrowcast.comm_hook import CommHook, HookStateDict

_logger = logging.getLogger(__name__)

__all__ = ["PowerSGDState", "batched_powerSGD_hook", "powerSGD_hook"]


class PowerSGDState:
    """The state of powerSGD_hook or batched_powerSGD_hook, for one model, with PyTorch's arguments. The compression is logged
    every compression_stats_logging_frequency steps; `state.hook.compression` is the same.

    min_compression_rate, orthogonalization_epsilon and batch_tensors_with_same_shape must be left out for
    batched_powerSGD_hook, which ignores them in PyTorch. The first bucket raises ValueError or TypeError, on all ranks, for wrong
    arguments of any rank."""

    def __init__(self, process_group: Optional[dist.ProcessGroup], matrix_approximation_rank: int = 1,
                 start_powerSGD_iter: int = 1_000, min_compression_rate: float = 2, use_error_feedback: bool = True,
                 warm_start: bool = True, orthogonalization_epsilon: float = 0, random_seed: int = 0,
                 compression_stats_logging_frequency: int = 10_000, batch_tensors_with_same_shape: bool = False) -> None:
        self._process_group = process_group
        self._hook: Optional[CommHook] = None
        self._steps = 0
        self._options: dict[str, Option] = {
            "power_sgd_rank": matrix_approximation_rank, "power_sgd_start": start_powerSGD_iter,
            "power_sgd_min_rate": min_compression_rate, "power_sgd_error_feedback": use_error_feedback,
            "power_sgd_warm_start": warm_start, "power_sgd_epsilon": orthogonalization_epsilon, "power_sgd_seed": random_seed,
            "power_sgd_batch": batch_tensors_with_same_shape, "power_sgd_memory": "averaged"}
        self._log_every = 1
        try:
            self._log_every = max(1, compression_stats_logging_frequency)
            if start_powerSGD_iter <= 1 and (use_error_feedback or warm_start):
                raise ValueError(f"start_powerSGD_iter: must be at least 2 with use_error_feedback or warm_start, because "
                                 f"buckets change after the first step, but is {start_powerSGD_iter}")
        except (TypeError, ValueError) as error:
            self._options = wrong(error)

    @property
    def hook(self) -> CommHook:
        """The hook, which is chosen by the first bucket."""
        if self._hook is None:
            raise RuntimeError("the state has no hook before its first bucket, or before open()")
        return self._hook

    def open(self, name: str = "power_sgd", device: Union[None, str, torch.device] = None) -> CommHook:
        """Chooses the hook, "power_sgd" or "batched_power_sgd". With a device it is made, a collective, so that its state can be
        loaded before the first bucket."""
        if self._hook is None:
            self._hook = CommHook(name, self._process_group, **self._options)
        elif self._hook.name != name:
            raise ValueError(f"a PowerSGDState cannot be shared: it belongs to {self._hook.name}, and {name} was asked for")
        if device is not None:
            self._hook.open(device)
        return self._hook

    def run(self, name: str, bucket: dist.GradBucket) -> torch.futures.Future[torch.Tensor]:
        """CommHook.run of the hook of that name."""
        hook = self.open(name)
        future = hook.run(bucket)
        if bucket.is_last():
            self._steps += 1
            if self._steps % self._log_every == 0:
                _logger.info("%s: compression %.1f after %d steps", name, hook.compression or 1, self._steps)
        return future

    def state_dict(self, model: torch.nn.Module) -> HookStateDict:
        """CommHook.state_dict."""
        return self.hook.state_dict(model)

    def load_state_dict(self, saved: Union[HookStateDict, list[HookStateDict]], model: torch.nn.Module) -> None:
        """CommHook.load_state_dict."""
        self.hook.load_state_dict(saved, model)

    def __getstate__(self) -> Any:
        raise TypeError("a PowerSGDState cannot be pickled: save state_dict(model)")


def powerSGD_hook(state: PowerSGDState, bucket: dist.GradBucket) -> torch.futures.Future[torch.Tensor]:
    """PowerSGD of each parameter's matrix."""
    return state.run("power_sgd", bucket)


def batched_powerSGD_hook(state: PowerSGDState, bucket: dist.GradBucket) -> torch.futures.Future[torch.Tensor]:
    """PowerSGD of each bucket as one square matrix."""
    return state.run("batched_power_sgd", bucket)

"""torch.distributed.algorithms.ddp_comm_hooks.powerSGD_hook."""
import logging
from typing import Any, Optional, Sequence, Union

import torch
import torch.distributed as dist

from narrowcast.comm_hook import CommHook, HookStateDict, averaging_in_place, check_state

_logger = logging.getLogger(__name__)

__all__ = ["PowerSGDState", "batched_powerSGD_hook", "powerSGD_hook"]

_OPTIONS = {  # Of CommHook, by PyTorch's argument.
    "matrix_approximation_rank": "power_sgd_rank", "start_powerSGD_iter": "power_sgd_start",
    "min_compression_rate": "power_sgd_min_rate", "use_error_feedback": "power_sgd_error_feedback",
    "warm_start": "power_sgd_warm_start", "orthogonalization_epsilon": "power_sgd_epsilon", "random_seed": "power_sgd_seed",
    "batch_tensors_with_same_shape": "power_sgd_batch"}


def check_start(start_powerSGD_iter: int) -> None:
    """ValueError if it is less than 2."""
    if start_powerSGD_iter <= 1:
        raise ValueError(f"start_powerSGD_iter: must be at least 2 with use_error_feedback or warm_start, because buckets change "
                         f"after the first step, but is {start_powerSGD_iter}")


def _argument(name: str) -> Any:
    return property(lambda state: state._arguments[name], doc="The argument of the constructor.")


class PowerSGDState:
    """The state of powerSGD_hook or batched_powerSGD_hook, for one model, with PyTorch's arguments. The compression is logged
    every compression_stats_logging_frequency steps; `state.hook.compression` is the same.

    min_compression_rate, orthogonalization_epsilon and batch_tensors_with_same_shape must be left out for
    batched_powerSGD_hook, which ignores them in PyTorch. The constructor raises ValueError if start_powerSGD_iter is less than 2
    with error feedback or warm start. The first bucket raises ValueError or TypeError, on all ranks, for other wrong arguments of
    any rank.

    Before its first bucket it can be pickled, without its process group, and then averages over the default group. Later save
    state_dict(model). Arguments are attributes that cannot be set, except process_group before the first bucket."""

    matrix_approximation_rank = _argument("matrix_approximation_rank")
    start_powerSGD_iter = _argument("start_powerSGD_iter")
    min_compression_rate = _argument("min_compression_rate")
    use_error_feedback = _argument("use_error_feedback")
    warm_start = _argument("warm_start")
    orthogonalization_epsilon = _argument("orthogonalization_epsilon")
    random_seed = _argument("random_seed")
    compression_stats_logging_frequency = _argument("compression_stats_logging_frequency")
    batch_tensors_with_same_shape = _argument("batch_tensors_with_same_shape")

    def __init__(self, process_group: Optional[dist.ProcessGroup], matrix_approximation_rank: int = 1,
                 start_powerSGD_iter: int = 1_000, min_compression_rate: float = 2, use_error_feedback: bool = True,
                 warm_start: bool = True, orthogonalization_epsilon: float = 0, random_seed: int = 0,
                 compression_stats_logging_frequency: int = 10_000, batch_tensors_with_same_shape: bool = False) -> None:
        if use_error_feedback or warm_start:
            check_start(start_powerSGD_iter)
        self._process_group = process_group
        self._hook: Optional[CommHook] = None
        self._arguments: dict[str, Any] = {
            "matrix_approximation_rank": matrix_approximation_rank, "start_powerSGD_iter": start_powerSGD_iter,
            "min_compression_rate": min_compression_rate, "use_error_feedback": use_error_feedback, "warm_start": warm_start,
            "orthogonalization_epsilon": orthogonalization_epsilon, "random_seed": random_seed,
            "compression_stats_logging_frequency": max(1, compression_stats_logging_frequency),
            "batch_tensors_with_same_shape": batch_tensors_with_same_shape}

    @property
    def process_group(self) -> Optional[dist.ProcessGroup]:
        """The group whose ranks average. None is the default group at the time of the first bucket."""
        return self._process_group

    @process_group.setter
    def process_group(self, group: Optional[dist.ProcessGroup]) -> None:
        if self._hook is not None:
            raise RuntimeError("process_group: cannot be set any more, because the state has a hook")
        self._process_group = group

    @property
    def iter(self) -> int:
        """Averaged steps, also those before the state was saved."""
        return 0 if self._hook is None else self._hook.steps

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
            self._hook = CommHook(name, self._process_group, power_sgd_memory="averaged",
                                  **{option: self._arguments[argument] for argument, option in _OPTIONS.items()})
        elif self._hook.name != name:
            raise ValueError(f"a PowerSGDState cannot be shared: it belongs to {self._hook.name}, and {name} was asked for")
        if device is not None:
            self._hook.open(device)
        return self._hook

    def run(self, name: str, bucket: dist.GradBucket) -> torch.futures.Future[torch.Tensor]:
        """CommHook.run of the hook of that name."""
        hook = self.open(name)
        future = hook.run(bucket)
        if bucket.is_last() and hook.steps % self.compression_stats_logging_frequency == 0:
            _logger.info("%s: compression %.1f after %d steps", name, hook.compression or 1, hook.steps)
        return future

    def state_dict(self, model: torch.nn.Module) -> HookStateDict:
        """CommHook.state_dict."""
        return self.hook.state_dict(model)

    def load_state_dict(self, saved: Union[HookStateDict, Sequence[HookStateDict]], model: torch.nn.Module) -> None:
        """CommHook.load_state_dict."""
        self.hook.load_state_dict(saved, model)

    def __getstate__(self) -> dict[str, Any]:
        if self._hook is not None:
            raise TypeError("a PowerSGDState that has a hook cannot be pickled or copied: save state_dict(model)")
        if self._process_group is not None:
            _logger.warning("a pickled PowerSGDState has no process group: set process_group after loading, unless it is the "
                            "default group")
        return {**self.__dict__, "_process_group": None}


@averaging_in_place
def powerSGD_hook(state: PowerSGDState, bucket: dist.GradBucket) -> torch.futures.Future[torch.Tensor]:
    """PowerSGD of each parameter's matrix."""
    check_state(state, PowerSGDState, "PowerSGDState(None)")
    return state.run("power_sgd", bucket)


@averaging_in_place
def batched_powerSGD_hook(state: PowerSGDState, bucket: dist.GradBucket) -> torch.futures.Future[torch.Tensor]:
    """PowerSGD of each bucket as one square matrix."""
    check_state(state, PowerSGDState, "PowerSGDState(None)")
    return state.run("batched_power_sgd", bucket)

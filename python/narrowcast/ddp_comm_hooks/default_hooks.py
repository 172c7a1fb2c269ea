"""torch.distributed.algorithms.ddp_comm_hooks.default_hooks."""
from typing import Any, Callable

import torch
import torch.distributed as dist
from torch.distributed.algorithms.ddp_comm_hooks import default_hooks as pytorch

from narrowcast.comm_hook import averages_in_place, check_bucket
from narrowcast.ddp_comm_hooks._stateless import stateless

__all__ = ["allreduce_hook", "bf16_compress_hook", "bf16_compress_wrapper", "fp16_compress_hook", "fp16_compress_wrapper"]

_Hook = Callable[[Any, dist.GradBucket], torch.futures.Future[torch.Tensor]]

allreduce_hook = stateless("allreduce")
fp16_compress_hook = stateless("fp16_compress", of_gradient=pytorch.fp16_compress_hook)
bf16_compress_hook = stateless("bf16_compress", of_gradient=pytorch.bf16_compress_hook)


def fp16_compress_wrapper(hook: _Hook) -> _Hook:
    """A hook that casts gradients to float16 for `hook`, and the means back. An error of a hook of narrowcast keeps its type."""
    return _wrapper(hook, torch.float16)


def bf16_compress_wrapper(hook: _Hook) -> _Hook:
    """The same with bfloat16."""
    return _wrapper(hook, torch.bfloat16)


def _wrapper(hook: _Hook, dtype: torch.dtype) -> _Hook:
    # PyTorch's bf16_compress_wrapper_hook is refused, by its name, if torch is built without CUDA.
    def narrowcast_compress_wrapper_hook(state: Any, bucket: dist.GradBucket) -> torch.futures.Future[torch.Tensor]:
        check_bucket(bucket)
        bucket.set_buffer(bucket.buffer().to(dtype))
        future = hook(state, bucket)
        if averages_in_place(hook):
            return future  # A function of Python after it would turn each error into a RuntimeError.
        return future.then(lambda done: bucket.buffer().copy_(done.value()))

    return narrowcast_compress_wrapper_hook

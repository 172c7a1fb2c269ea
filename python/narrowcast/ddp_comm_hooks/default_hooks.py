"""torch.distributed.algorithms.ddp_comm_hooks.default_hooks. The wrappers are PyTorch's own: they also wrap narrowcast's
hooks."""
from torch.distributed.algorithms.ddp_comm_hooks.default_hooks import bf16_compress_wrapper, fp16_compress_wrapper

from narrowcast.ddp_comm_hooks._stateless import stateless

__all__ = ["allreduce_hook", "bf16_compress_hook", "bf16_compress_wrapper", "fp16_compress_hook", "fp16_compress_wrapper"]

allreduce_hook = stateless("allreduce")
fp16_compress_hook = stateless("fp16_compress")
bf16_compress_hook = stateless("bf16_compress")

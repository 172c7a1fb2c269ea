"""torch.distributed.algorithms.ddp_comm_hooks.quantization_hooks."""
from narrowcast.ddp_comm_hooks._stateless import stateless

__all__ = ["quantization_perchannel_hook", "quantization_pertensor_hook"]

quantization_pertensor_hook = stateless("quantize_per_tensor")
quantization_perchannel_hook = stateless("quantize_per_channel")

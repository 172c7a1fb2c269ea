"""torch.distributed.algorithms.ddp_comm_hooks.quantization_hooks."""
from typing import Optional

import torch
import torch.distributed as dist

from narrowcast.comm_hook import averaging_in_place
from narrowcast.ddp_comm_hooks._stateless import HooksOfModels, stateless

__all__ = ["quantization_perchannel_hook", "quantization_pertensor_hook"]

quantization_pertensor_hook = stateless("quantize_per_tensor")

_of_channel_size: dict[tuple[type, int], HooksOfModels] = {}  # By type too: 512.0 equals 512, and is an error.


@averaging_in_place
def quantization_perchannel_hook(process_group: Optional[dist.ProcessGroup], bucket: dist.GradBucket,
                                 bucket_size: int = 512) -> torch.futures.Future[torch.Tensor]:
    """Averages codes of 8 bits, with a scale and a zero point for each bucket_size elements."""
    key = (type(bucket_size), bucket_size)
    if key not in _of_channel_size:
        _of_channel_size[key] = HooksOfModels("quantize_per_channel", channel_size=bucket_size)
    return _of_channel_size[key].run(process_group, bucket)

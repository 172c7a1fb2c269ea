"""Hooks whose state is a process group, as PyTorch's are: model.register_comm_hook(process_group, hook)."""
from typing import Any, Callable, Optional

import torch
import torch.distributed as dist
from torch.utils.weak import WeakIdKeyDictionary

from narrowcast.comm_hook import CommHook

Hook = Callable[[Optional[dist.ProcessGroup], dist.GradBucket], torch.futures.Future[torch.Tensor]]


def stateless(name: str) -> Hook:
    """A function that averages buckets with the hook of that name, over the group that is its state, by default the group of
    all ranks."""
    hooks = _HooksOfModels(name)

    def hook(process_group: Optional[dist.ProcessGroup], bucket: dist.GradBucket) -> torch.futures.Future[torch.Tensor]:
        return hooks.find(process_group, bucket).run(bucket)

    hook.__name__ = hook.__qualname__ = f"{name}_hook"
    return hook


class _HooksOfModels:
    """A CommHook for each model, because a hook may have each bucket in flight once. The function that DistributedDataParallel
    calls does not know its model, only the parameters of a bucket, which may change buckets after the first step."""

    def __init__(self, name: str) -> None:
        self._name = name
        self._of_parameter: Any = WeakIdKeyDictionary()
        self._newest: Optional[CommHook] = None

    def find(self, process_group: Optional[dist.ProcessGroup], bucket: dist.GradBucket) -> CommHook:
        parameters = bucket.parameters()
        found = self._of_parameter.get(parameters[0])
        group = dist.group.WORLD if process_group is None else process_group
        if found is None or found.process_group is not group:
            # A model's first pass begins with bucket 0.
            found = CommHook(self._name, group) if bucket.index() == 0 or self._newest is None else self._newest
            self._newest = found
        for each in parameters:
            self._of_parameter[each] = found
        return found

"""Hooks whose state is a process group, as PyTorch's are: model.register_comm_hook(process_group, hook)."""
from typing import Callable, Optional

import torch
import torch.distributed as dist

from narrowcast.comm_hook import CommHook, Option

Hook = Callable[[Optional[dist.ProcessGroup], dist.GradBucket], torch.futures.Future[torch.Tensor]]


def stateless(name: str) -> Hook:
    """A function that averages buckets with the hook of that name, over the group that is its state, by default the group of
    all ranks."""
    hooks = HooksOfModels(name)

    def hook(process_group: Optional[dist.ProcessGroup], bucket: dist.GradBucket) -> torch.futures.Future[torch.Tensor]:
        return hooks.run(process_group, bucket)

    # DistributedDataParallel refuses a function of the name bf16_compress_hook if torch is built without CUDA.
    hook.__name__ = hook.__qualname__ = f"narrowcast_{name}_hook"
    return hook


class HooksOfModels:
    """A CommHook for each model of a joint backward pass, because a hook may have each bucket in flight once. The function that
    DistributedDataParallel calls does not know its model. So the first model that gives a bucket number in a pass uses the first
    hook, the second model the second one. All ranks give buckets in the same order. Bits do not depend on the hook.

    options: of CommHook. Not for hooks that keep anything between steps."""

    def __init__(self, name: str, **options: Option) -> None:
        self._name = name
        self._options = options
        self._of_group: dict[dist.ProcessGroup, _HooksOfGroup] = {}

    def run(self, process_group: Optional[dist.ProcessGroup],
            bucket: dist.GradBucket) -> torch.futures.Future[torch.Tensor]:
        """CommHook.run."""
        group = dist.group.WORLD if process_group is None else process_group
        if group not in self._of_group:
            self._of_group[group] = _HooksOfGroup()
        return self._of_group[group].next(bucket.index(), lambda: CommHook(self._name, group, **self._options)).run(bucket)


class _HooksOfGroup:
    def __init__(self) -> None:
        self._hooks: list[CommHook] = []
        self._pass: Optional[int] = None
        self._given: dict[int, int] = {}  # How often each bucket number was given in this pass.

    def next(self, index: int, make: Callable[[], CommHook]) -> CommHook:
        # Outside of a backward pass, -1: DistributedDataParallel.join waits for a model's buckets before the next model's.
        current = torch._C._current_graph_task_id()
        if current != self._pass or (current == -1 and index == 0):
            self._pass = current
            self._given.clear()
        number = self._given.get(index, 0)
        self._given[index] = number + 1
        if number == len(self._hooks):
            self._hooks.append(make())
        return self._hooks[number]

"""Hooks whose state is a process group, as PyTorch's are: model.register_comm_hook(process_group, hook)."""
import weakref
from typing import Any, Callable, Optional

import torch
import torch.distributed as dist

from narrowcast._closing import close_with
from narrowcast._group import group_or_default
from narrowcast._options import Option
from narrowcast.comm_hook import averaging_in_place, check_bucket, make_hook, run_hook

Hook = Callable[[Optional[dist.ProcessGroup], dist.GradBucket], torch.futures.Future[torch.Tensor]]


def stateless(name: str, of_gradient: Optional[Callable[..., torch.futures.Future[torch.Tensor]]] = None) -> Hook:
    """A function that averages buckets with the hook of that name, over the group that is its state, by default the group of
    all ranks. of_gradient: a hook of PyTorch with the same bits, for single gradients (check_bucket)."""
    hooks = HooksOfModels(name)

    @averaging_in_place
    def hook(process_group: Optional[dist.ProcessGroup], bucket: dist.GradBucket) -> torch.futures.Future[torch.Tensor]:
        if of_gradient is not None and isinstance(bucket, tuple):
            return of_gradient(process_group, bucket)
        return hooks.run(process_group, bucket)

    # DistributedDataParallel refuses a function of the name bf16_compress_hook if torch is built without CUDA.
    hook.__name__ = hook.__qualname__ = f"narrowcast_{name}_hook"
    return hook


class HooksOfModels:
    """A hook for each model of a joint backward pass, because a hook has each bucket in flight once, and makes the next model
    wait. The function that DistributedDataParallel calls does not know its model. So the first model that gives a bucket number
    in a pass uses the first hook, the second model the second one. All ranks give buckets in the same order. Bits do not depend
    on the hook.

    The hooks of a group are closed once it is destroyed and no model uses it any more.

    options: of CommHook. Not for hooks that keep anything between steps."""

    def __init__(self, name: str, **options: Option) -> None:
        self._name = name
        self._options = options
        # The values must not refer to the groups.
        self._of_group: weakref.WeakKeyDictionary[dist.ProcessGroup, _HooksOfGroup] = weakref.WeakKeyDictionary()

    def run(self, process_group: Optional[dist.ProcessGroup],
            bucket: dist.GradBucket) -> torch.futures.Future[torch.Tensor]:
        """CommHook.run."""
        check_bucket(bucket)
        group = group_or_default(process_group)
        if group not in self._of_group:
            self._of_group[group] = _HooksOfGroup()
        hook = self._of_group[group].next(bucket.index(),
                                          lambda: make_hook(self._name, self._options, group, bucket.buffer().device))
        return run_hook(hook, bucket)


class _HooksOfGroup:
    def __init__(self) -> None:
        self._hooks: list[Any] = []
        self._pass: Optional[int] = None
        self._given: dict[int, int] = {}  # How often each bucket number was given in this pass.

    def next(self, index: int, make: Callable[[], Any]) -> Any:
        # Outside of a backward pass, -1: DistributedDataParallel.join waits for a model's buckets before the next model's.
        current = torch._C._current_graph_task_id()
        if current != self._pass or (current == -1 and index == 0):
            self._pass = current
            self._given.clear()
        number = self._given.get(index, 0)
        self._given[index] = number + 1
        if number == len(self._hooks):
            self._hooks.append(make())
            close_with(self, self._hooks[-1].close)
        # A checkpoint with use_reentrant=True has a pass of its own within the pass, so the count can begin anew while buckets
        # are in flight. The hook waits for them.
        return self._hooks[number]

"""Tells whether gradients were averaged twice before they were cleared."""
import weakref
from typing import Any

import torch


class PassWatch:
    """Over all ranks, gradients are averages in the rank's own shard only. A second averaged pass would add to averages there, and
    to this rank's own gradients elsewhere."""

    def __init__(self, hook: Any, parameter: torch.Tensor) -> None:
        """`hook`: in C++. `parameter` stands for all."""
        self._hook = hook
        self._parameter = parameter
        self._passes = 0  # When the gradient was None.
        self._averaged_twice = False
        own = weakref.ref(self)  # The parameter lives longer.

        def before_gradient(_gradient: torch.Tensor) -> None:
            watch = own()
            if watch is not None:
                watch._see()

        self._handle = parameter.register_hook(before_gradient)

    def check(self) -> None:
        """ValueError if gradients were averaged twice."""
        if self._averaged_twice:
            raise ValueError("gradients were averaged twice since they were None: with a hook, call zero_grad() before each averaged "
                             "backward pass, and accumulate in no_sync()")

    def close(self) -> None:
        """Ends it."""
        self._handle.remove()

    def _see(self) -> None:
        if self._parameter.grad is None:
            self._passes, self._averaged_twice = self._hook.passes(), False
        elif self._hook.passes() > self._passes:
            self._averaged_twice = True

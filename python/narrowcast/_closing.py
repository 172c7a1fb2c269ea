"""Destroys C++ objects without Python's global lock (GIL)."""
import os
import weakref
from typing import Callable


def close_with(owner: object, close: Callable[[], None]) -> weakref.finalize:
    """Calls `close` when `owner` is collected or Python exits. Methods of torch.classes run without the GIL, destructors with
    it: they would wait for an engine's thread that may need the GIL to release a tensor."""
    return weakref.finalize(owner, _close, close, os.getpid())


def _close(close: Callable[[], None], process: int) -> None:
    if os.getpid() == process:  # A forked child does not have the engine's thread.
        close()

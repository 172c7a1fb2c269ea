"""Options on their way to the classes in C++. An error of one rank's options must be an error on all ranks. So Python raises
none itself: the classes raise it, once the ranks have compared their options."""
import sys
from typing import Any, Union

import torch

Option = Union[None, bool, int, float, str, torch.device]


def wrong(error: Exception) -> dict[str, Option]:
    """In place of options: an error that all ranks raise, as TypeError or ValueError."""
    return {"wrong type" if isinstance(error, TypeError) else "wrong value": str(error)}


def passable(options: dict[str, Any]) -> dict[str, Option]:
    """The options, or their first error if one of them has a type that C++ cannot take. NumPy's numbers become Python's."""
    numpy = sys.modules.get("numpy")
    passed: dict[str, Option] = {}
    for name, value in options.items():
        if numpy is not None and isinstance(value, numpy.generic):
            value = value.item()
        if not (value is None or isinstance(value, (bool, int, float, str))):
            return wrong(TypeError(f"{name}: must be a bool, int, float or str, but is {type(value).__name__}"))
        if isinstance(value, int) and not -2**63 <= value < 2**63:
            return wrong(ValueError(f"{name}: must be an integer of 64 bits, but has {value.bit_length()} bits"))
        passed[name] = value
    return passed


def call_text(name: str, *arguments: object, **options: object) -> str:
    """The text of a call, for __repr__."""
    return f"{name}({', '.join([*map(repr, arguments), *(f'{each}={value!r}' for each, value in options.items())])})"

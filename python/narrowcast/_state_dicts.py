"""State dictionaries as named tensors. Equal values give equal bytes on all ranks, and reading them runs no code."""
import collections
import json
from typing import Any

import torch

_STRUCTURE = "structure"
_PLAIN = (type(None), bool, int, float, str)
_SEQUENCES = {"list": list, "tuple": tuple}
_MAPPINGS = {"dict": dict, "OrderedDict": collections.OrderedDict, "Counter": collections.Counter}
_NAMES: dict[type, str] = {kind: name for name, kind in {**_SEQUENCES, **_MAPPINGS}.items()}


def to_tensors(value: Any, name: str) -> dict[str, torch.Tensor]:
    """Its tensors, which are not copied, and its structure as JSON in a tensor. TypeError, naming the place in `name`, for a type
    that is not a tensor, None, bool, int, float, str, list, tuple, dict, OrderedDict or Counter."""
    tensors: list[torch.Tensor] = []
    text = json.dumps(_encoded(value, name, tensors))
    named = {str(number): tensor for number, tensor in enumerate(tensors)}
    return {_STRUCTURE: torch.frombuffer(bytearray(text.encode()), dtype=torch.uint8), **named}


def from_tensors(tensors: dict[str, torch.Tensor]) -> Any:
    """The value, with these tensors."""
    return _decoded(json.loads(bytes(tensors[_STRUCTURE].tolist())), tensors)


def _encoded(value: Any, name: str, tensors: list[torch.Tensor]) -> Any:
    kind = type(value)
    if kind in _PLAIN:
        return value
    if isinstance(value, torch.Tensor):
        tensors.append(value.detach())
        return {"tensor": len(tensors) - 1}
    if kind in _SEQUENCES.values():
        return {_NAMES[kind]: [_encoded(each, f"{name}[{number}]", tensors) for number, each in enumerate(value)]}
    if kind in _MAPPINGS.values():
        return {_NAMES[kind]: [[_encoded(key, f"a key of {name}", tensors), _encoded(each, f"{name}[{key!r}]", tensors)]
                               for key, each in value.items()]}
    raise TypeError(f"state: {name} is a {kind.__module__}.{kind.__qualname__}, which cannot be sent")


def _decoded(structure: Any, tensors: dict[str, torch.Tensor]) -> Any:
    if not isinstance(structure, dict):
        return structure
    (name, content), = structure.items()
    if name == "tensor":
        return tensors[str(content)]
    if name in _SEQUENCES:
        return _SEQUENCES[name](_decoded(each, tensors) for each in content)
    return _MAPPINGS[name]({_decoded(key, tensors): _decoded(each, tensors) for key, each in content})

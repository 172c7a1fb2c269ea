"""What a ShardedOptimizer must know of the optimizer that steps the shards."""
from typing import Any

import torch

ParamGroup = dict[str, Any]

# Optimizers that compute each element from that element of the gradient and the state. Not classes derived from them, which
# may compute something else.
_ELEMENTWISE = (torch.optim.ASGD, torch.optim.Adadelta, torch.optim.Adagrad, torch.optim.Adam, torch.optim.AdamW,
                torch.optim.Adamax, torch.optim.NAdam, torch.optim.RAdam, torch.optim.RMSprop, torch.optim.Rprop, torch.optim.SGD)
_NOT_OPTIONS = ("params", "param_names")  # The other entries of a parameter group are options.


def check_kind(optimizer: torch.optim.Optimizer, whole_parameters: bool) -> None:
    """ValueError for an optimizer that cannot be sharded so."""
    name = type(optimizer).__name__
    if isinstance(optimizer, torch.optim.LBFGS):
        raise ValueError(f"{name} computes with all parameters at once, so it cannot be sharded")
    if type(optimizer) not in _ELEMENTWISE and not whole_parameters:
        known = ", ".join(each.__name__ for each in _ELEMENTWISE)
        raise ValueError(f"{name} is none of PyTorch's {known}, so its steps may need whole parameters: pass "
                         "whole_parameters=True")


def options_of(group: ParamGroup) -> ParamGroup:
    return {name: value for name, value in group.items() if name not in _NOT_OPTIONS}


def copy_options(source: list[ParamGroup], target: list[ParamGroup]) -> None:
    for given, taken in zip(source, target):
        taken.update(options_of(given))


def compared(optimizer: torch.optim.Optimizer) -> dict[str, str]:
    """What must be the same on all ranks."""
    kind = type(optimizer)
    values = {"the optimizer": f"{kind.__module__}.{kind.__qualname__}",
              "the number of parameter groups": str(len(optimizer.param_groups))}
    for number, group in enumerate(optimizer.param_groups):
        for name, value in options_of(group).items():
            values[f"{name} of parameter group {number}"] = _text_of(value)
    return values


def _text_of(value: Any) -> str:
    """Equal values have equal texts on all ranks."""
    if isinstance(value, torch.Tensor):
        return f"tensor {value.tolist()}"
    if isinstance(value, (tuple, list)):
        return str([_text_of(each) for each in value])
    return repr(value) if value is None or isinstance(value, (bool, int, float, str)) else type(value).__name__

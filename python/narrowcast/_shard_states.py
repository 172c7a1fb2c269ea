"""State of an optimizer, of whole parameters and of their pieces."""
import copy
import dataclasses
import json
from typing import Any

import torch

from narrowcast._state_dicts import from_tensors, to_tensors

State = dict[str, Any]  # Of one parameter or piece.

_STRUCTURE = "structure"  # An entry of to_tensors.
_WORD = torch.float32  # Tensors are sent as these.


@dataclasses.dataclass(frozen=True)
class Piece:
    """A part of a parameter, in its memory's order."""

    parameter: torch.Tensor
    number: int  # The parameter's.
    begin: int
    numel: int

    @property
    def is_whole(self) -> bool:
        return self.numel == self.parameter.numel()

    def of(self, tensor: torch.Tensor) -> torch.Tensor:
        """The memory of this piece of `tensor`, which has the parameter's strides."""
        return tensor.as_strided((self.numel,), (1,), tensor.storage_offset() + self.begin)


def laid_out_as(parameter: torch.Tensor, tensor: torch.Tensor) -> torch.Tensor:
    """The tensor with the parameter's order in memory; a copy only if it has another one."""
    if tensor.stride() == parameter.stride():
        return tensor
    return torch.empty_like(parameter, dtype=tensor.dtype).copy_(tensor)


def check_shapes(state: State, parameter: torch.Tensor, number: int) -> None:
    """ValueError for a tensor that cannot be cut as the parameter is."""
    for name, value in state.items():
        if isinstance(value, torch.Tensor) and value.numel() != 1 and value.shape != parameter.shape:
            raise ValueError(f"'{name}' of parameter {number} is {list(value.shape)}, but the parameter is {list(parameter.shape)}")


def cut(state: State, piece: Piece) -> State:
    """A copy of the piece's part of its parameter's state. Tensors of one element are not cut."""
    def part_of(value: Any) -> Any:
        if not isinstance(value, torch.Tensor):
            return copy.deepcopy(value)
        if piece.is_whole or value.numel() == 1:
            return value.clone()
        return piece.of(laid_out_as(piece.parameter, value)).clone()

    return {name: part_of(value) for name, value in state.items()}


def join(whole: State, state: State, piece: Piece) -> None:
    """Copies the state of a piece to the state of its parameter."""
    for name, value in state.items():
        if not isinstance(value, torch.Tensor):
            whole[name] = copy.deepcopy(value)
        elif piece.is_whole:
            same_shape = value.shape == piece.parameter.shape
            whole[name] = torch.empty_like(piece.parameter if same_shape else value, dtype=value.dtype).copy_(value)
        elif value.shape == (piece.numel,):  # Also [1], of a piece of one element. Numbers of a parameter are [].
            if name not in whole:
                whole[name] = torch.zeros_like(piece.parameter, dtype=value.dtype)
            piece.of(whole[name]).copy_(value)
        else:
            whole[name] = value.clone()


def take_part(target: State, new: Piece, state: State, old: Piece) -> None:
    """Copies what the states of two pieces of a parameter have in common. `target` is the new piece's."""
    begin, end = max(old.begin, new.begin), min(old.begin + old.numel, new.begin + new.numel)
    if begin >= end and new.parameter.numel() > 0:
        return
    for name, value in state.items():
        if not isinstance(value, torch.Tensor):
            target[name] = copy.deepcopy(value)
        elif value.shape != (old.parameter.shape if old.is_whole else (old.numel,)):
            target[name] = value.clone()
        else:
            if name not in target:
                target[name] = (torch.zeros_like(new.parameter, dtype=value.dtype) if new.is_whole
                                else value.new_zeros(new.numel))
            source = laid_out_as(old.parameter, value) if old.is_whole else value
            _memory_of(target[name])[begin - new.begin:end - new.begin].copy_(_memory_of(source)[begin - old.begin:end - old.begin])


def _memory_of(tensor: torch.Tensor) -> torch.Tensor:
    """The memory of a tensor without holes."""
    return tensor.as_strided((tensor.numel(),), (1,))


class SentStates:
    """States of a rank's pieces on their way: the tensors, and a text that describes them."""

    def __init__(self, states: dict[int, State]) -> None:
        """By parameter. TypeError naming an entry of a type that cannot be sent."""
        named = to_tensors(states, "optimizer")
        self.structure = bytes(named.pop(_STRUCTURE).tolist()).decode()
        self.tensors = list(named.values())

    def text(self) -> str:
        kinds = [(str(each.dtype).removeprefix("torch."), list(each.shape)) for each in self.tensors]
        return json.dumps([self.structure, kinds])

    def words(self) -> list[torch.Tensor]:
        """The tensors' bytes, as float32 tensors [n]."""
        return [_words_of(each) for each in self.tensors]


class ReceivedStates:
    """The same on the rank that receives them."""

    def __init__(self, text: str) -> None:
        self._structure, kinds = json.loads(text)
        self._kinds = [(getattr(torch, dtype), torch.Size(shape)) for dtype, shape in kinds]
        self._sizes = [_count_words(dtype, shape.numel()) for dtype, shape in self._kinds]
        self.words = sum(self._sizes)

    def read(self, words: torch.Tensor) -> dict[int, State]:
        tensors = [part.view(torch.uint8)[:dtype.itemsize * shape.numel()].clone().view(dtype).view(shape)
                   for part, (dtype, shape) in zip(words.split(self._sizes), self._kinds)]
        structure = torch.frombuffer(bytearray(self._structure.encode()), dtype=torch.uint8)
        return from_tensors({_STRUCTURE: structure, **{str(number): tensor for number, tensor in enumerate(tensors)}})


def _count_words(dtype: torch.dtype, numel: int) -> int:
    return -(-dtype.itemsize * numel // _WORD.itemsize)


def _words_of(tensor: torch.Tensor) -> torch.Tensor:
    flat = tensor.contiguous().view(-1).view(torch.uint8)
    if tensor.dtype.itemsize < _WORD.itemsize:
        flat = torch.cat([flat, flat.new_zeros(-len(flat) % _WORD.itemsize)])
    return flat.view(_WORD)

"""Buckets of PyTorch's DistributedDataParallel. Each one begins with a single bucket, and chooses others once, by the order in
which gradients became ready. Sums in other buckets have other bits. So one that is made after a loss begins with the buckets
that the lost one had."""
import contextlib
import warnings
import weakref
from typing import Any, Iterator, Optional
from unittest import mock

import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel

_ASSIGN = "_compute_bucket_assignment_by_size"  # In torch.distributed. DistributedDataParallel's constructor calls it once.
_INIT = "_ddp_init_helper"  # In DistributedDataParallel. It calls _ASSIGN.
_END = -1  # Of a bucket, in the tensors.

Buckets = list[list[int]]  # The parameters in each bucket, by their numbers in the reducer.


class BucketsOfRun:
    """The settled buckets of a run's models, in the order in which they are made for each group. Equal on all ranks."""

    def __init__(self) -> None:
        self._settled: Optional[list[Buckets]] = None
        # Each model that was made, in order, and its parameters in the reducer's order.
        self._made: list[tuple[weakref.ref[DistributedDataParallel], list[torch.Tensor]]] = []
        self._is_checked = False

    @contextlib.contextmanager
    def making(self) -> Iterator[None]:
        """Within the block, each new model is noted, and begins with its settled buckets, if they are known."""
        self.drop()
        assign, init = getattr(dist, _ASSIGN), getattr(DistributedDataParallel, _INIT)

        def init_and_note(model: DistributedDataParallel, parameters: list[torch.Tensor], *arguments: Any, **options: Any) -> None:
            self._made.append((weakref.ref(model), parameters))
            init(model, parameters, *arguments, **options)

        def assign_as_before(parameters: list[torch.Tensor], *arguments: Any) -> tuple[Buckets, list[int]]:
            number = len(self._made) - 1
            buckets, limits = assign(parameters, *arguments)
            if self._settled is None:
                return buckets, limits
            known = self._settled[number] if number < len(self._settled) else []
            if sorted(sum(known, [])) != list(range(len(parameters))):
                raise ValueError("make: must make the same models, with the same parameters, for each group")
            return known[::-1], [limits[-1]] * len(known)  # The caller reverses them.

        with mock.patch.object(dist, _ASSIGN, assign_as_before), mock.patch.object(DistributedDataParallel, _INIT, init_and_note):
            yield

    def models(self) -> list[DistributedDataParallel]:
        """The models that were made and still exist, in the order of their constructors."""
        return [model for model, _ in self._existing()]

    def drop(self) -> None:
        """Forgets the models, and keeps their buckets."""
        self._made, self._is_checked = [], False

    def are_settled(self) -> bool:
        """After a step: whether buckets are known. No longer changes once it is true."""
        if not self._is_checked and all(_is_final(model) for model in self.models()):
            self._is_checked = True
            found = [_buckets_of(model, parameters) for model, parameters in self._existing()]
            if self._settled is None:
                self._settled = found or None
            elif self._settled != found:
                warnings.warn("gradients became ready in another order than in the first step, so that the buckets have changed: "
                              "from now on bits differ from those of a run without losses")
        return self._settled is not None or not self.models()

    def save(self) -> dict[str, torch.Tensor]:
        """As a part of the state."""
        return {str(number): torch.tensor(sum(([*bucket, _END] for bucket in buckets), []))
                for number, buckets in enumerate(self._settled or [])}

    def load(self, tensors: dict[str, torch.Tensor]) -> None:
        """The inverse of save, before the models of a group are made."""
        self._settled = [_buckets_in(tensors[str(number)].tolist()) for number in range(len(tensors))] or None

    def _existing(self) -> Iterator[tuple[DistributedDataParallel, list[torch.Tensor]]]:
        for reference, parameters in self._made:
            model = reference()
            if model is not None:
                yield model, parameters


def _buckets_of(model: DistributedDataParallel, parameters: list[torch.Tensor]) -> Buckets:
    numbers = {id(parameter): number for number, parameter in enumerate(parameters)}
    return [[numbers[id(each)] for each in bucket.parameters()] for bucket in model.reducer._get_zeros_like_grad_buckets()]


def _is_final(model: DistributedDataParallel) -> bool:
    return model._has_rebuilt_buckets or (model.find_unused_parameters and not model.static_graph)


def _buckets_in(numbers: list[int]) -> Buckets:
    buckets: Buckets = [[]]
    for number in numbers:
        if number == _END:
            buckets.append([])
        else:
            buckets[-1].append(number)
    return buckets[:-1]

"""Training steps that go on when a rank is lost."""
import contextlib
import ctypes
import dataclasses
import datetime
import gc
import re
import sys
import warnings
import weakref
from typing import Any, Callable, Iterator, Mapping, Optional, Protocol, Union, runtime_checkable
from unittest import mock

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel

from narrowcast._buckets import BucketsOfRun
from narrowcast._group import group_or_default
from narrowcast._options import passable
from narrowcast._state_dicts import from_tensors, to_tensors
from narrowcast.comm_hook import CommHook, _gradient_device, _named_parameters
from narrowcast.ddp_comm_hooks.powerSGD_hook import PowerSGDState, batched_powerSGD_hook

Tensors = dict[str, torch.Tensor]


@runtime_checkable
class Stateful(Protocol):
    """An optimizer, a learning rate scheduler, a GradScaler, ..."""

    def state_dict(self) -> Any: ...

    def load_state_dict(self, state_dict: Any) -> Any: ...


Part = Union[torch.Tensor, nn.Module, Stateful, tuple[Callable[[], Tensors], Callable[[Tensors], Any]]]


@dataclasses.dataclass(frozen=True)
class ElasticRecovery:
    """A recovery. step: the next step. lost_ranks: ranks whose processes are new, in order; may be empty. seconds: since this
    process failed; None in a process that has replaced another one."""

    step: int
    lost_ranks: list[int]
    seconds: Optional[float]


class ElasticGroup:
    """Runs the steps of a training. If another rank is lost, under `narrowcast-run --recovery=in_place --max_restarts=N`, this
    rank forms a new group with the others, and continues at the same step:

        elastic = narrowcast.ElasticGroup()
        elastic.run({"model": model, "optimizer": optimizer}, lambda group: DistributedDataParallel(model), step)

    The ranks find the furthest step that one of them has done. Ranks behind it, and new processes, get the state from the others.
    Then the failed step is taken again: no step is lost, and none counts twice. docs/explain/recovery.md describes which hooks
    end with the bits of a run without losses.

    on_recovery: called on every rank before the first step after a loss.
    first_step: the same on all ranks; greater than 0 if the program has loaded a checkpoint.
    copies_state: whether a step that fails may have changed the state. Then the state is copied before each step, and buffers of
        modules become rank 0's after each step. Without copies, a step must change the state only after its last collective has
        returned, e.g. by optimizer.step(), and the forward pass no buffers.
    timeout_seconds: of the rendezvous and of every collective. A time-out is no loss, but an error.
    silence_seconds: a rank without a heartbeat for this long is lost; at least 3, or 0 for never.

    Communicates nothing. ValueError or TypeError for a wrong option, or a place in the job, which the launcher describes by
    environment variables, that is not valid. Not thread-safe."""

    def __init__(self, *, on_recovery: Optional[Callable[[ElasticRecovery], Any]] = None, first_step: int = 0,
                 copies_state: bool = True, timeout_seconds: float = 600, silence_seconds: float = 30) -> None:
        self._on_recovery = on_recovery
        self._own = torch.classes.narrowcast.ElasticGroup(passable({
            "timeout_seconds": timeout_seconds, "silence_seconds": silence_seconds, "first_step": first_step,
            "copies_state": copies_state}))
        self._timeout = datetime.timedelta(seconds=timeout_seconds)
        self._has_run = False

    def run(self, state: Mapping[str, Part], make: Callable[[dist.ProcessGroup], Any], step: Callable[[Any, int], bool]) -> None:
        """Joins the other ranks and takes steps until `step` returns False. All ranks call it once, and return after all of them
        have taken the last step.

        state: what a new process needs, by name, the same parts on all ranks. After each step the values must be the same on all
            ranks.
            - A tensor, or a module's parameters and buffers: copied in place. ValueError, naming it, if its shape or dtype changes
              or another tensor takes its place.
            - An object with state_dict() and load_state_dict(), e.g. an optimizer. The dictionary may contain tensors, None, bool,
              int, float, str, list, tuple, dict, OrderedDict and Counter; TypeError, naming the part, for others.
            - Everything else: two functions, save() -> dict of tensors, and load(dict of tensors on the CPU).
        make(group): returns what lasts as long as the group, e.g. one or more DistributedDataParallel in an object of any kind.
            It makes the same models, in the same order, each time. `group` is the default group of torch.distributed, by Gloo, so
            DistributedDataParallel(model) and all functions of torch.distributed use it. It is destroyed after a loss. Nothing
            else may refer to what was made: a warning.
        step(made, number): takes a step, from first_step on. Returns whether there is another one, the same on all ranks. It is
            called again with the same number and state if it fails because another rank was lost. Data and random numbers must
            follow from the state, the number and the rank. Gradients are no part of the state: after a loss they are None.

        If another rank or the network fails in `make` or `step`, they must let the error pass: torch.distributed.DistError, or the
        RuntimeError of Gloo. Raises torch.distributed.DistBackendError for a loss under other launchers, a time-out, and the last
        of 10 losses in a row; ValueError on all ranks if the parts of the state differ between ranks, and for hooks that do not
        keep the models equal. If the others have worked together before, a new process that differs from them, in the state or in
        what it makes, ends alone. RuntimeError if torch.distributed is initialized already. Exceptions of the functions are raised
        unchanged: let them end the process, and its launcher replaces it. So is sys.exit(), but with code 0 nothing replaces the
        process: to end the training, return False."""
        if self._has_run:
            raise RuntimeError("an ElasticGroup runs once")
        if dist.is_initialized():
            raise RuntimeError("torch.distributed is initialized already: ElasticGroup makes the default group, without "
                               "init_process_group")
        self._has_run = True
        answers = _Answers(self._own, _PartsOfState(self._own, state), self._timeout)
        answers.make, answers.step, answers.on_recovery = make, step, self._on_recovery
        function = ctypes.CFUNCTYPE(ctypes.c_int64, ctypes.c_int64, ctypes.c_int64)(answers.answer)
        try:
            with mock.patch.object(dist.distributed_c10d, "default_pg_timeout", self._timeout), answers.keeping_interrupts(), \
                    _watching_groups(self._own):
                self._own.run(ctypes.cast(function, ctypes.c_void_p).value)
        except RuntimeError:
            if answers.error is None:
                raise
        except ValueError as found:
            if answers.differs is None or str(answers.differs) not in str(found):
                raise
            raise answers.differs from None
        error, answers.error = answers.error, None
        if error is not None:
            raise error

    @property
    def recoveries(self) -> int:
        """How many times this process went on after a loss, once run() has returned."""
        return self._own.recoveries()


class _PartsOfState:
    """The parts of the state that Python saves and loads, and the tensors that C++ copies in place."""

    def __init__(self, own: Any, state: Mapping[str, Part]) -> None:
        self._own = own
        self._functions: list[tuple[Callable[[], Tensors], Callable[[Tensors], Any]]] = []
        self._modules: dict[str, nn.Module] = {}
        self._places: dict[str, torch.Tensor] = {}  # Of the modules.
        self._scalers: list[torch.amp.GradScaler] = []
        for name, part in state.items():
            self._add(name, part)

    def add_functions(self, name: str, save: Callable[[], Tensors], load: Callable[[Tensors], Any]) -> None:
        self._own.add_functions(name, len(self._functions))
        self._functions.append((save, load))

    def save(self, number: int) -> None:
        self._own.give(self._functions[number][0]())

    def load(self, number: int) -> None:
        self._functions[number][1](dict(self._own.given()))

    def check(self) -> None:
        """ValueError if a module has other tensors now."""
        now = {place: tensor for name, module in self._modules.items() for place, tensor in _places_of(name, module)}
        for place in {**self._places, **now}:
            if now.get(place) is not self._places.get(place):
                change = "is gone" if place not in now else "is another tensor" if place in self._places else "is new"
                raise ValueError(f"state: '{place}' {change} now; change it in place, or add it by two functions, save and load")

    def forget_failed_step(self) -> None:
        for each in self._scalers:  # Else unscale_ is an error, if the failed step has called it.
            getattr(each, "_per_optimizer_states", {}).clear()

    def _add(self, name: str, part: Part) -> None:
        if isinstance(part, torch.Tensor):
            self._own.add_tensor(name, part)
        elif isinstance(part, DistributedDataParallel):
            raise TypeError(f"state: '{name}' is a DistributedDataParallel, which lasts as long as a group; add its module")
        elif isinstance(part, nn.Module):
            self._modules[name] = part
            for place, tensor in _places_of(name, part):
                self._own.add_tensor(place, tensor)
                self._places[place] = tensor
        elif isinstance(part, Stateful):
            stateful: Stateful = part  # For mypy: what a lambda refers to might have changed.
            _to_tensors(stateful.state_dict(), name)  # Raises errors now, and not after a loss.
            if isinstance(part, torch.amp.GradScaler):
                self._scalers.append(part)
            self.add_functions(name, lambda: _to_tensors(stateful.state_dict(), name),
                               lambda tensors: stateful.load_state_dict(from_tensors(tensors)))
        elif isinstance(part, tuple) and len(part) == 2 and all(map(callable, part)):
            self.add_functions(name, *part)
        else:
            raise TypeError(f"state: '{name}' must be a tensor, a module, an object with state_dict and load_state_dict, or two "
                            f"functions, save and load, but is a {type(part).__name__}")


def _to_tensors(value: Any, name: str) -> Tensors:
    try:
        return to_tensors(value, name)
    except TypeError as error:
        raise TypeError(f"{error}; add this part by two functions, save and load") from None


def _places_of(name: str, module: nn.Module) -> Iterator[tuple[str, torch.Tensor]]:
    seen: set[int] = set()
    for prefix, each in module.named_modules(prefix=name):
        for table in (each._parameters, each._buffers):
            for key, tensor in table.items():
                if tensor is not None and id(tensor) not in seen:
                    seen.add(id(tensor))
                    yield f"{prefix}.{key}", tensor


# Gloo's errors have no class of their own in Python. They begin with their place in its source, except the error of a rank whose
# connections were closed because another one is silent or gone, and the errors of monitored_barrier.
_LOSS = re.compile(r"\[\S*gloo/\S*:\d+\] |Application timeout caused pair closure"
                   r"|(\[Rank \d+\]: )?(Ranks? [\d, ]+ failed to pass monitoredBarrier|Rank \d+ successfully reached monitoredB)")
_OWN_LOSS = re.compile(r"rank \d+: .*(failed: |is lost: )")  # Of narrowcast, where LibTorch has dropped its class.
# LibTorch's text before an error of a future that a callback has read, as in the hooks of PyTorch. Wrapped hooks repeat it.
_CALLBACK = re.compile(r"Got the following error when running the callback: (?:\w+\.)*(\w+): ")
_ORIGINAL = "Original exception: \n"  # In an error of monitored_barrier.


def _loss(error: BaseException) -> Optional[str]:
    """The text of a network error. None for other errors."""
    text, is_loss = str(error), isinstance(error, dist.DistError)
    if not is_loss and type(error) is not RuntimeError:
        return None
    while callback := _CALLBACK.match(text):
        text = text[callback.end():]
        inner = getattr(dist, callback[1], None)
        is_loss = isinstance(inner, type) and issubclass(inner, dist.DistError) or _OWN_LOSS.match(text) is not None
        if not is_loss and callback[1] != "RuntimeError":
            return None
    if not is_loss and not _LOSS.match(text):
        return None
    return text.partition(_ORIGINAL)[2] or text


class _Answers:
    """Answers the requests of the class in C++, python/classes/elastic_group_class.cpp, which has the same numbers."""

    _FAILED, _LOST, _NO, _YES, _DIFFERS = range(5)

    make: Callable[[dist.ProcessGroup], Any]
    step: Callable[[Any, int], bool]
    on_recovery: Optional[Callable[[ElasticRecovery], Any]]

    def __init__(self, own: Any, parts: _PartsOfState, timeout: datetime.timedelta) -> None:
        self.error: Optional[BaseException] = None
        self.differs: Optional[ValueError] = None  # Of `make`: if another rank is new, this one may go on without it.
        self._own = own
        self._parts = parts
        self._timeout = timeout
        self._made: Any = None
        self._models: list[DistributedDataParallel] = []
        self._former_models: list[weakref.ref[DistributedDataParallel]] = []
        self._buckets = BucketsOfRun()
        parts.add_functions("buckets of DistributedDataParallel", self._buckets.save, self._buckets.load)
        self._requests = (self._make, self._drop, self._step, parts.save, parts.load, self._sync_buffers, self._are_settled,
                          self._save_hooks, self._load_hooks, self._recovered)

    def answer(self, request: int, number: int) -> int:
        try:
            function = self._requests[request]
            if self.error is not None and function != self._drop:
                return self._FAILED  # Dropping has failed, which C++ cannot notice.
            return self._YES if function(number) else self._NO
        except BaseException as error:
            loss = _loss(error)
            if isinstance(error, ValueError) and function == self._make:
                self.differs = error
                self._own.fail(str(error))
                return self._DIFFERS
            if loss is None:
                self._keep(error)
                return self._FAILED
            self._own.fail(loss)
            return self._LOST

    @contextlib.contextmanager
    def keeping_interrupts(self) -> Iterator[None]:
        """Within the block, exceptions of signals that arrive while C++ runs are kept. Python raises them when `answer` begins,
        before its first line. Then ctypes returns 0, which is _FAILED."""
        hook, answer = sys.unraisablehook, self.answer

        def keep(unraisable: Any) -> None:
            if unraisable.object == answer:
                self._keep(unraisable.exc_value)
            else:
                hook(unraisable)

        with mock.patch.object(sys, "unraisablehook", keep):
            yield

    def _keep(self, error: BaseException) -> None:
        if self.error is None:
            self.error = error

    def _make(self, _number: int) -> None:
        if any(each() is not None for each in self._former_models):
            warnings.warn("make: something else still refers to a DistributedDataParallel of an old group, whose connections and "
                          "threads last as long")
        self._parts.forget_failed_step()
        _init_default_group(dist.ProcessGroup.unbox(self._own.group()), self._timeout)
        with self._buckets.making():
            self._made = self.make(group_or_default(None))
        self._models = self._buckets.models()
        for _, hook, model in self._hooks():
            if not hook.open(_gradient_device(model)).keeps_replicas_equal:
                raise ValueError(f"make: hook '{hook.name}' does not keep the ranks' models equal, which a recovery needs")

    def _drop(self, _number: int) -> None:
        self._former_models = [weakref.ref(each) for each in self._models]
        remaining: list[weakref.ref[Any]] = [*self._former_models]
        self._made, self._models = None, []
        self._buckets.drop()
        if dist.is_initialized():
            remaining.append(weakref.ref(dist.group.WORLD))
            dist.destroy_process_group()
        if any(each() is not None for each in remaining):
            gc.collect()  # Connections end, and threads of hooks, when the last reference is gone.

    def _step(self, number: int) -> bool:
        has_next = self.step(self._made, number)
        if not isinstance(has_next, bool):
            raise TypeError(f"step: must return whether there is another step, True or False, but returned {has_next!r}")
        self._parts.check()
        return has_next

    def _sync_buffers(self, _number: int) -> None:
        for model in self._models:
            if model.will_sync_module_buffers():
                model._sync_buffers()

    def _are_settled(self, _number: int) -> bool:
        return self._buckets.are_settled()

    def _save_hooks(self, _number: int) -> None:
        tensors: Tensors = {}
        for prefix, hook, model in self._hooks():
            for name, tensor in hook._own().state(*_named_parameters(model)).items():
                tensors[prefix + name] = tensor
        self._own.give(tensors)

    def _load_hooks(self, _number: int) -> None:
        world_size, states, first = self._own.hook_states()
        for prefix, hook, model in self._hooks():
            hook.load_tensors(world_size, [_with_prefix(prefix, each) for each in states], _with_prefix(prefix, first), model)

    def _recovered(self, _number: int) -> None:
        if self.on_recovery is not None:
            self.on_recovery(ElasticRecovery(*self._own.recovery()))

    def _hooks(self) -> Iterator[tuple[str, CommHook, DistributedDataParallel]]:
        """Narrowcast's hooks with a state, and the prefix of its names."""
        for number, model in enumerate(self._models):
            for function, state in model._comm_hooks:
                if isinstance(state, PowerSGDState):
                    state = state.open("batched_power_sgd" if function is batched_powerSGD_hook else "power_sgd")
                if isinstance(state, CommHook):
                    yield f"{number}.", state, model


def _with_prefix(prefix: str, tensors: Tensors) -> Tensors:
    return {name.removeprefix(prefix): tensor for name, tensor in tensors.items() if name.startswith(prefix)}


@contextlib.contextmanager
def _watching_groups(own: Any) -> Iterator[None]:
    """Within the block, groups of torch.distributed.new_group are closed with the default one when a machine is lost. new_group
    registers each of them by this function."""
    register = dist.distributed_c10d._register_process_group

    def register_and_watch(name: str, group: dist.ProcessGroup) -> None:
        register(name, group)
        own.watch(group.boxed())

    with mock.patch.object(dist.distributed_c10d, "_register_process_group", register_and_watch):
        yield


_BACKEND = "narrowcast"


def _init_default_group(group: dist.ProcessGroup, timeout: datetime.timedelta) -> None:
    """Makes the default group of torch.distributed, which uses the connections of `group`. Groups of torch.distributed.new_group
    get their own."""
    connected = [group._get_backend(torch.device("cpu"))]

    def create(store: dist.Store, rank: int, size: int, timeout: datetime.timedelta) -> Any:
        return connected.pop() if connected else dist.ProcessGroupGloo(store, rank, size, timeout=timeout)

    dist.Backend.register_backend(_BACKEND, create, devices=["cpu"])
    with mock.patch.object(sys, "excepthook", sys.excepthook):  # Each group would add its rank's prefix to errors.
        dist.init_process_group(_BACKEND, store=dist.PrefixStore("torch", group.get_group_store()), rank=group.rank(),
                                world_size=group.size(), timeout=timeout)

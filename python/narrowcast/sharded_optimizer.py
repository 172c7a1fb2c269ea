"""Optimizers whose work and memory the ranks of a node share."""
import collections
import contextlib
from typing import Any, Callable, NoReturn, Optional

import torch
import torch.distributed as dist

from narrowcast._closing import close_with
from narrowcast._group import group_or_default
from narrowcast._options import passable, wrong
from narrowcast._shard_states import Piece, ReceivedStates, SentStates, State, check_shapes, cut, join, laid_out_as

ParamGroup = dict[str, Any]

# Optimizers that compute each element from that element of the gradient and the state. Not classes derived from them, which
# may compute something else.
_ELEMENTWISE = (torch.optim.ASGD, torch.optim.Adadelta, torch.optim.Adagrad, torch.optim.Adam, torch.optim.AdamW,
                torch.optim.Adamax, torch.optim.NAdam, torch.optim.RAdam, torch.optim.RMSprop, torch.optim.Rprop, torch.optim.SGD)
_NOT_OPTIONS = ("params", "param_names")  # The other entries of a parameter group are options.
_NUMBERS_OF_PIECE = 3  # In C++: the parameter, the beginning and the number of elements.


class ShardedOptimizer(torch.optim.Optimizer):
    """ZeRO's first stage within nodes: each rank steps a shard of the parameters, holds the state of that shard only, and copies
    the others' new parameters from the memory of its node. A step sends nothing between nodes. Takes the place of an optimizer or
    of torch.distributed.optim.ZeroRedundancyOptimizer:

        ddp = DistributedDataParallel(model)
        optimizer = narrowcast.ShardedOptimizer(model.parameters(), torch.optim.AdamW, lr=3e-4)

    params, optimizer_class, defaults: optimizer_class(params, **defaults) is the optimizer. params may be groups. Parameters must
        be float32, on the CPU, and equal on all ranks.
    process_group: the ranks; by default the default group. At least two of them must share a node.
    whole_parameters: whether a parameter is stepped by one rank as a whole. Optimizers that are not elementwise need it: all but
        PyTorch's ASGD, Adadelta, Adagrad, Adam, AdamW, Adamax, NAdam, RAdam, RMSprop, Rprop and SGD. LBFGS is refused.
    node_size: every so many consecutive ranks are a node. By default the ranks find their nodes.
    silence_seconds: as for CommHook.

    Parameters get the bits of a training with the optimizer itself. Gradients must be equal on all ranks, as they are after
    DistributedDataParallel has averaged them. param_groups holds the whole parameters, so schedulers, GradScaler and
    clip_grad_norm_ work as with any optimizer.

    Making it is a collective, and so are step, consolidate_state_dict and load_state_dict: all ranks call them in the same order,
    and pass the same arguments. Errors of one rank's arguments are errors on all ranks, and nothing is changed then: ValueError or
    TypeError. Raises torch.distributed.DistBackendError if another rank or the network fails."""

    _own: Any = None  # The shards in C++. None while the constructor of the base class runs.

    def __init__(self, params: Any, optimizer_class: Callable[..., torch.optim.Optimizer],
                 process_group: Optional[dist.ProcessGroup] = None, *, whole_parameters: bool = False,
                 node_size: Optional[int] = None, silence_seconds: Optional[float] = None, **defaults: Any) -> None:
        self.process_group = group_or_default(process_group)
        options = passable({"whole_parameters": whole_parameters, "node_size": node_size, "silence_seconds": silence_seconds})
        groups: list[ParamGroup] = []
        values: dict[str, str] = {}
        try:
            whole = optimizer_class(params, **defaults)
            _check_kind(whole, whole_parameters)
            groups, values = whole.param_groups, _compared(whole)
            super().__init__([dict(group) for group in groups], whole.defaults)
            del whole  # It may have made a state.
        except Exception as error:
            options = wrong(error)
        trained: dict[int, tuple[torch.Tensor, int]] = {}  # Each once, with its first group.
        for number, group in enumerate(groups):
            for each in group["params"]:
                if each.requires_grad:
                    trained.setdefault(id(each), (each, number))
        self._trained = [parameter for parameter, _ in trained.values()]
        self._groups = [number for _, number in trained.values()]
        own = torch.classes.narrowcast.ParameterShards(self._trained, self._groups, options, values, self.process_group.group_name)
        self._finalizer = close_with(self, own.close)
        self._own = own
        self._whole_parameters = whole_parameters
        self._ranks: list[int] = own.ranks()  # Of this node.
        self._local_rank = self._ranks.index(self.process_group.rank())
        self._shards = [[Piece(self._trained[shard[i]], *shard[i:i + _NUMBERS_OF_PIECE])
                         for i in range(0, len(shard), _NUMBERS_OF_PIECE)] for shard in own.pieces()]
        self._tensors: list[torch.Tensor] = own.own_pieces()
        self._has_whole_state = False
        with self._agreeing("ShardedOptimizer"):
            self._inner = optimizer_class(self._groups_of_pieces(self._tensors), **defaults)

    @torch.no_grad()
    def step(self, closure: Optional[Callable[[], Any]] = None) -> Any:
        """A step of the optimizer for this rank's shard, then the exchange in the node. Parameters without a gradient are skipped:
        on all ranks or on none. `closure` is called once, before the step; its result is returned. If the step raises an error
        on one rank, the other ranks of the node raise DistBackendError. Parameters are then partly the new ones, and the process
        group cannot be used any more."""
        self._drop_whole_state()
        try:
            result = None
            if closure is not None:
                with torch.enable_grad():
                    result = closure()
            self._step_pieces()
        except BaseException as error:  # The other ranks then fail instead of waiting.
            with contextlib.suppress(Exception):
                self._own.exchange(f"{type(error).__name__}: {error}")
            raise
        self._own.exchange(None)
        return result

    def consolidate_state_dict(self, to: int = 0) -> None:
        """Rank `to` gets the state of whole parameters, which state_dict() returns there until the next step."""
        self._drop_whole_state()
        sent = None
        with self._agreeing("consolidate_state_dict", lambda: f"{to} {self._local_rank} {sent.text()}") as texts:
            if not isinstance(to, int) or not 0 <= to < self.process_group.size():
                raise ValueError(f"to: must be a rank of the group, 0 to {self.process_group.size() - 1}, but is {to!r}")
            sent = SentStates(self._own_states())
        self._gather(to, texts, sent)

    def state_dict(self) -> dict[str, Any]:
        """The state that the optimizer without shards would return and can load; a ShardedOptimizer of any world can load it as
        well. RuntimeError except on the rank of consolidate_state_dict, and after a later step."""
        if not self._has_whole_state:
            raise RuntimeError(f"state_dict: rank {self.process_group.rank()} does not have the state of whole parameters; call "
                               "consolidate_state_dict(to=RANK) on all ranks after the last step, and state_dict() on that rank")
        return super().state_dict()

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Takes this rank's shard of a state: what state_dict() of this class or of the optimizer without shards returned, in any
        world. A state of parameters that require no gradient is dropped."""
        before = [(each, each.param_groups, each.state) for each in (self, self._inner)]
        try:
            with self._agreeing("load_state_dict"):
                super().load_state_dict(state_dict)
                self._load_pieces()
        except BaseException:
            for optimizer, groups, state in before:
                optimizer.param_groups, optimizer.state = groups, state
            raise
        self._drop_whole_state()

    def add_param_group(self, param_group: ParamGroup) -> None:
        """RuntimeError: the parameters are those of the constructor."""
        if self._own is not None:
            raise RuntimeError("add_param_group: the parameters are sharded already; make another ShardedOptimizer with all of "
                               "them")
        super().add_param_group(param_group)

    def close(self) -> None:
        """Ends it. Not needed: one that is collected is closed."""
        self._finalizer()

    @property
    def shards(self) -> int:
        """Number of shards: ranks of this node."""
        return len(self._shards)

    @property
    def elements(self) -> int:
        """Elements of all parameters that require a gradient."""
        return sum(each.numel() for each in self._trained)

    @property
    def own_elements(self) -> int:
        """Elements of this rank's shard."""
        return sum(each.numel for each in self._own_shard)

    def __getstate__(self) -> NoReturn:
        raise TypeError("a ShardedOptimizer cannot be pickled or copied: save state_dict() after consolidate_state_dict()")

    @property
    def _own_shard(self) -> list[Piece]:
        return self._shards[self._local_rank]

    @contextlib.contextmanager
    def _agreeing(self, call: str, text: Callable[[], str] = str) -> Any:
        """All ranks raise the error that the block raises on one of them. Otherwise the list has the texts of all ranks then."""
        texts: list[str] = []
        own_text, own_error = "", None
        try:
            yield texts
            own_text = text()
        except Exception as error:
            own_error = error
        try:
            texts += self._own.agree(call, {} if own_error is None else wrong(own_error), own_text)
        except Exception as error:
            raise error from own_error

    def _groups_of_pieces(self, contents: list[Any]) -> list[ParamGroup]:
        """The groups with this content for each piece of this rank."""
        groups = [{**_options_of(group), "params": []} for group in self.param_groups]
        for piece, content in zip(self._own_shard, contents):
            groups[self._groups[piece.number]]["params"].append(content)
        return groups

    def _step_pieces(self) -> None:
        self._check_parameters()
        _copy_options(self.param_groups, self._inner.param_groups)  # Schedulers change them.
        for piece, tensor in zip(self._own_shard, self._tensors):
            tensor.grad = self._gradient_of(piece)
        try:
            self._inner.step()
        finally:
            for tensor in self._tensors:
                tensor.grad = None
        _copy_options(self._inner.param_groups, self.param_groups)

    def _check_parameters(self) -> None:
        known = {id(each) for each in self._trained}
        for number, group in enumerate(self.param_groups):
            for each in group["params"]:
                if each.grad is not None and id(each) not in known:
                    raise ValueError(f"a parameter {list(each.shape)} of group {number} has a gradient, but required none when the "
                                     "parameters were sharded: make another ShardedOptimizer")
        for piece, tensor in zip(self._own_shard, self._tensors):
            if tensor.data_ptr() != piece.parameter.data_ptr() + piece.begin * tensor.element_size():
                raise ValueError(f"parameter {piece.number} has other memory than when it was sharded; change it in place")

    def _gradient_of(self, piece: Piece) -> Optional[torch.Tensor]:
        gradient = piece.parameter.grad
        if gradient is None or self._whole_parameters:
            return gradient
        if gradient.layout != torch.strided:
            raise ValueError(f"the gradient of parameter {piece.number} has the layout {gradient.layout}, so it cannot be cut: "
                             "pass whole_parameters=True")
        return gradient if piece.is_whole else piece.of(laid_out_as(piece.parameter, gradient.detach()))

    def _drop_whole_state(self) -> None:
        self.state = collections.defaultdict(dict)
        self._has_whole_state = False

    def _gather(self, to: int, texts: list[str], sent: SentStates) -> None:
        """The shards come one after the other, so that rank `to` has room for one of them besides the result."""
        goals, local_ranks, headers = zip(*(text.split(" ", 2) for text in texts))
        for rank, goal in enumerate(goals):
            if goal != goals[0]:
                raise ValueError(f"to differs between ranks: rank 0 has {goals[0]}, rank {rank} has {goal}")
        states = [ReceivedStates(header) for header in headers]
        is_goal = self.process_group.rank() == to
        whole: dict[int, State] = {}
        for local_rank in range(max(map(int, local_ranks)) + 1):
            largest = max(each.words for each, number in zip(states, local_ranks) if int(number) == local_rank)
            numels = [0] * self.shards
            wanted: list[list[torch.Tensor]] = [[] for _ in numels]
            gives = local_rank == self._local_rank
            if local_rank < self.shards:
                received = states[self._ranks[local_rank]]
                numels[local_rank] = received.words
                if is_goal and not gives:
                    wanted[local_rank] = [torch.empty(received.words)]
            self._own.gather(sent.words() if gives else [], numels, largest, wanted)
            if is_goal and local_rank < self.shards:
                of_shard = self._own_states() if gives else received.read(*wanted[local_rank])
                for piece in self._shards[local_rank]:
                    if piece.number in of_shard:
                        join(whole.setdefault(piece.number, {}), of_shard[piece.number], piece)
        self._has_whole_state = is_goal
        self.state.update({self._trained[number]: state for number, state in sorted(whole.items())})

    def _own_states(self) -> dict[int, State]:
        """By parameter, the states of this rank's pieces that have one."""
        return {piece.number: self._inner.state[tensor] for piece, tensor in zip(self._own_shard, self._tensors)
                if self._inner.state.get(tensor)}

    def _load_pieces(self) -> None:
        """The optimizer of the pieces takes its part of self.state."""
        if not self._whole_parameters:
            for number, parameter in enumerate(self._trained):
                check_shapes(self.state.get(parameter, {}), parameter, number)
        states = [cut(self.state.get(piece.parameter, {}), piece) for piece in self._own_shard]
        groups = self._groups_of_pieces(list(range(len(states))))
        self._inner.load_state_dict({"state": {number: state for number, state in enumerate(states) if state},
                                     "param_groups": groups})


def _check_kind(optimizer: torch.optim.Optimizer, whole_parameters: bool) -> None:
    name = type(optimizer).__name__
    if isinstance(optimizer, torch.optim.LBFGS):
        raise ValueError(f"{name} computes with all parameters at once, so it cannot be sharded")
    if type(optimizer) not in _ELEMENTWISE and not whole_parameters:
        known = ", ".join(each.__name__ for each in _ELEMENTWISE)
        raise ValueError(f"{name} is none of PyTorch's {known}, so its steps may need whole parameters: pass "
                         "whole_parameters=True")


def _options_of(group: ParamGroup) -> ParamGroup:
    return {name: value for name, value in group.items() if name not in _NOT_OPTIONS}


def _copy_options(source: list[ParamGroup], target: list[ParamGroup]) -> None:
    for given, taken in zip(source, target):
        taken.update(_options_of(given))


def _compared(optimizer: torch.optim.Optimizer) -> dict[str, str]:
    """What must be the same on all ranks."""
    kind = type(optimizer)
    values = {"the optimizer": f"{kind.__module__}.{kind.__qualname__}",
              "the number of parameter groups": str(len(optimizer.param_groups))}
    for number, group in enumerate(optimizer.param_groups):
        for name, value in _options_of(group).items():
            values[f"{name} of parameter group {number}"] = _text_of(value)
    return values


def _text_of(value: Any) -> str:
    """Equal values have equal texts on all ranks."""
    if isinstance(value, torch.Tensor):
        return f"tensor {value.tolist()}"
    if isinstance(value, (tuple, list)):
        return str([_text_of(each) for each in value])
    return repr(value) if value is None or isinstance(value, (bool, int, float, str)) else type(value).__name__

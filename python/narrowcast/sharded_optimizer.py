"""Optimizers whose work and memory ranks share."""
import collections
import contextlib
import math
from typing import Any, Callable, NoReturn, Optional

import torch
import torch.distributed as dist

from narrowcast._closing import close_with
from narrowcast._group import group_or_default
from narrowcast._optimizers import ParamGroup, check_kind, compared, copy_options, options_of
from narrowcast._options import passable, wrong
from narrowcast._pass_watch import PassWatch
from narrowcast._shard_states import Piece, ReceivedStates, SentStates, State, check_shapes, cut, join, laid_out_as, take_part
from narrowcast.comm_hook import CommHook

_NUMBERS_OF_PIECE = 3  # In C++: the parameter, the beginning and the number of elements.


class ShardedOptimizer(torch.optim.Optimizer):
    """ZeRO's first stage: each rank steps a shard of the parameters, holds the state of that shard only, and gets the others' new
    parameters. Takes the place of an optimizer or of torch.distributed.optim.ZeroRedundancyOptimizer:

        ddp = DistributedDataParallel(model)
        optimizer = narrowcast.ShardedOptimizer(model.parameters(), torch.optim.AdamW, lr=3e-4)

    Without a hook, the ranks of each node share the shards, and copy parameters in the node's memory: a step sends nothing between
    nodes. With the hook of the DistributedDataParallel, all ranks do. The hook then sends each rank the averages of its shard only,
    and the step sends parameters, as differences to masters in float32:

        hook = narrowcast.register(ddp, "int8")
        optimizer = narrowcast.ShardedOptimizer(model.parameters(), torch.optim.AdamW, lr=3e-4, hook=hook)

    params, optimizer_class, defaults: optimizer_class(params, **defaults) is the optimizer. params may be groups. Parameters must
        be float32, on the CPU, and equal on all ranks.
    process_group: the ranks; by default the default group, or the hook's. Without a hook, at least two must share a node.
    hook: of the DistributedDataParallel that has the parameters, made already. params must be all whose gradients it averages.
    parameter_format: with a hook, how differences are sent: a wire format, by default "int8_b128". "fp32" sends the parameters
        themselves, which gives the bits of a training without shards (except with hooks in a variable format, clip_grad_norm_
        and PyTorch's fused SGD).
    whole_parameters: whether a parameter is stepped by one rank as a whole. Optimizers that are not elementwise need it: all but
        PyTorch's ASGD, Adadelta, Adagrad, Adam, AdamW, Adamax, NAdam, RAdam, RMSprop, Rprop and SGD. LBFGS is refused.
    node_size: every so many consecutive ranks are a node. By default the ranks find their nodes.
    silence_seconds: as for CommHook.

    Without a hook, parameters get the bits of a training with the optimizer itself. Gradients must be equal on all ranks, as they
    are after DistributedDataParallel has averaged them. param_groups holds the whole parameters, so schedulers, GradScaler and
    clip_grad_norm_ work as with any optimizer. With a hook, gradients are averages in the rank's own shard only: GradScaler is
    refused, the norm is that of clip_grad_norm_() below, and gradients must be None before each averaged backward pass.

    Making it is a collective, and so are step, consolidate_state_dict and load_state_dict: all ranks call them in the same order,
    and pass the same arguments. Errors of one rank's arguments are errors on all ranks, and nothing is changed then: ValueError or
    TypeError. Raises torch.distributed.DistBackendError if another rank or the network fails."""

    _own: Any = None  # The shards in C++. None while the constructor of the base class runs.

    def __init__(self, params: Any, optimizer_class: Callable[..., torch.optim.Optimizer],
                 process_group: Optional[dist.ProcessGroup] = None, *, whole_parameters: bool = False,
                 node_size: Optional[int] = None, silence_seconds: Optional[float] = None, hook: Optional[CommHook] = None,
                 parameter_format: Optional[str] = None, **defaults: Any) -> None:
        if process_group is None and isinstance(hook, CommHook):
            process_group = hook.process_group
        self.process_group = group_or_default(process_group)
        options = passable({"whole_parameters": whole_parameters, "node_size": node_size, "silence_seconds": silence_seconds,
                            "parameter_format": parameter_format})
        made_hook = None
        groups: list[ParamGroup] = []
        values: dict[str, str] = {}
        try:
            whole = optimizer_class(params, **defaults)
            check_kind(whole, whole_parameters)
            made_hook = None if hook is None else _made(hook, self.process_group)
            groups, values = whole.param_groups, compared(whole)
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
        own = torch.classes.narrowcast.ParameterShards(self._trained, self._groups, options, values, self.process_group.group_name,
                                                       made_hook)
        self._finalizer = close_with(self, own.close)
        self._own = own
        self._whole_parameters = whole_parameters
        self._ranks: list[int] = own.ranks()  # That share the shards.
        self._local_rank = self._ranks.index(self.process_group.rank())
        self._made_hook: Any = made_hook
        self._over_all_ranks = made_hook is not None
        self._step_supports_amp_scaling = self._over_all_ranks  # So that GradScaler's step arrives at step().
        self._read_shards()
        self._strides = [each.stride() for each in self._trained]
        self._versions: Optional[list[int]] = None  # With masters, those that the last step left.
        self._passes = PassWatch(made_hook, self._trained[-1]) if self._over_all_ranks else None
        self._has_whole_state = False
        with self._agreeing("ShardedOptimizer"):
            self._inner = optimizer_class(self._groups_of_pieces(self._tensors), **defaults)

    @torch.no_grad()
    def step(self, closure: Optional[Callable[[], Any]] = None) -> Any:
        """A step of the optimizer for this rank's shard, then the exchange of parameters. Parameters without a gradient are skipped:
        on all ranks or on none. `closure` is called once, before the step; its result is returned. If the step raises an error
        on one rank, the other ranks that share its shards raise DistBackendError. Parameters are then partly the new ones, and
        the process group cannot be used any more."""
        self._drop_whole_state()
        result = None
        if closure is not None and self._over_all_ranks:
            raise ValueError("closure: must be None with a hook, whose shards may change with each backward pass")
        if hasattr(self, "found_inf"):  # GradScaler would remove both only after a step.
            for name in ("found_inf", "grad_scale"):
                delattr(self, name)
            raise ValueError("GradScaler cannot be used with hook=: gradients are averages in this rank's shard only, so ranks would "
                             "decide differently")
        self._follow_buckets()
        try:
            if closure is not None:
                with torch.enable_grad():
                    result = closure()
            if self._over_all_ranks:
                self._check_passes()
            self._step_pieces()
        except BaseException as error:  # The other ranks then fail instead of waiting.
            with contextlib.suppress(Exception):
                self._own.exchange(f"{type(error).__name__}: {error}")
            raise
        self._own.exchange(None)
        if self._own.has_masters():
            self._versions = [each._version for each in self._trained]
        return result

    @torch.no_grad()
    def clip_grad_norm_(self, max_norm: float) -> torch.Tensor:
        """torch.nn.utils.clip_grad_norm_ of all gradients; with a hook a collective, between backward() and step(). Returns the
        2-norm before, a float32 tensor []."""
        if not self._over_all_ranks:
            return torch.nn.utils.clip_grad_norm_(self._trained, max_norm)
        self._follow_buckets()
        square_sum = 0.
        with self._agreeing("clip_grad_norm_", lambda: square_sum.hex()) as texts:
            self._check_passes()
            parts = [(piece.parameter.grad, self._gradient_of(piece)) for piece in self._own_shard]
            norms = [torch.linalg.vector_norm(part, dtype=torch.double).item() for _, part in parts if part is not None]
            square_sum += sum(norm**2 for norm in norms)
        norm = math.sqrt(sum(map(float.fromhex, texts)))
        factor = max_norm / (norm + 1e-6)
        for gradient, _ in parts:
            if gradient is not None:
                gradient.mul_(1. if factor > 1 else factor)  # As PyTorch does, also with NaN.
        return torch.tensor(norm, dtype=torch.float32)

    def take_parameters(self) -> None:
        """Masters begin again with the values of the parameters, before the next step. All ranks must call it after they have changed
        parameters in place, or through their `data`, and not by load_state_dict. Without masters it does nothing."""
        if self._over_all_ranks:
            self._own.forget_masters()
            self._versions = None

    def consolidate_state_dict(self, to: int = 0) -> None:
        """Rank `to` gets the state of whole parameters, which state_dict() returns there until the next step."""
        self._drop_whole_state()
        sent: SentStates
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
        self.take_parameters()
        self._drop_whole_state()

    def add_param_group(self, param_group: ParamGroup) -> None:
        """RuntimeError: the parameters are those of the constructor."""
        if self._own is not None:
            raise RuntimeError("add_param_group: the parameters are sharded already; make another ShardedOptimizer with all of "
                               "them")
        super().add_param_group(param_group)

    def close(self) -> None:
        """Ends it. Without a hook it is not needed: one that is collected is closed. With a hook all ranks must call it between the
        same steps if the hook averages again: it averages all elements then."""
        if self._passes is not None:
            self._passes.close()
        self._finalizer()

    @property
    def shards(self) -> int:
        """Number of shards: ranks of this node or, with a hook, all ranks."""
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

    def _read_shards(self) -> None:
        self._shards = [[Piece(self._trained[shard[i]], *shard[i:i + _NUMBERS_OF_PIECE])
                         for i in range(0, len(shard), _NUMBERS_OF_PIECE)] for shard in self._own.pieces()]
        self._tensors: list[torch.Tensor] = self._own.own_pieces()

    def _follow_buckets(self) -> None:
        """With a hook, the shards become those of the last averaged buckets, and their state goes with them. The first steps of a
        training change the buckets."""
        if not self._over_all_ranks:
            return
        if not self._own.follow():
            return
        shards, states = self._shards, self._own_states()
        sent: SentStates
        with self._agreeing("moving the optimizer's state", lambda: sent.text()) as texts:
            sent = SentStates(states)
        self._read_shards()
        new = {piece.number: piece for piece in self._own_shard}
        parts: dict[int, State] = {number: {} for number in new}
        for rank, of_rank in enumerate(map(ReceivedStates, texts)):
            numels = [of_rank.words if each == rank else 0 for each in range(len(shards))]
            is_own = rank == self._local_rank
            words = torch.empty(0 if is_own else of_rank.words)
            self._own.gather(sent.words() if is_own else [], numels, of_rank.words,
                             [[words] if each == rank and not is_own else [] for each in range(len(shards))])
            of_shard = states if is_own else of_rank.read(words)
            for piece in shards[rank]:
                if piece.number in new and piece.number in of_shard:
                    take_part(parts[piece.number], new[piece.number], of_shard[piece.number], piece)
        for group, pieces in zip(self._inner.param_groups, self._groups_of_pieces(self._tensors)):
            group["params"] = pieces["params"]
        self._inner.state = collections.defaultdict(dict, {
            tensor: parts[piece.number] for piece, tensor in zip(self._own_shard, self._tensors) if parts[piece.number]})

    def _check_passes(self) -> None:
        if not self._made_hook.has_averaged():
            raise ValueError("no gradients were averaged yet: register the hook, and call backward() first")
        if self._passes is not None:
            self._passes.check()

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
        groups = [{**options_of(group), "params": []} for group in self.param_groups]
        for piece, content in zip(self._own_shard, contents):
            groups[self._groups[piece.number]]["params"].append(content)
        return groups

    def _step_pieces(self) -> None:
        self._check_parameters()
        copy_options(self.param_groups, self._inner.param_groups)  # Schedulers change them.
        for piece, tensor in zip(self._own_shard, self._tensors):
            tensor.grad = self._gradient_of(piece)
        try:
            self._inner.step()
        finally:
            for tensor in self._tensors:
                tensor.grad = None
        copy_options(self._inner.param_groups, self.param_groups)

    def _check_parameters(self) -> None:
        known = {id(each) for each in self._trained}
        for number, group in enumerate(self.param_groups):
            for each in group["params"]:
                if each.grad is not None and id(each) not in known:
                    raise ValueError(f"a parameter {list(each.shape)} of group {number} has a gradient, but required none when the "
                                     "parameters were sharded: make another ShardedOptimizer")
        for number, (each, strides) in enumerate(zip(self._trained, self._strides)):
            if each.stride() != strides:
                raise ValueError(f"parameter {number} has other strides than when it was sharded: {each.stride()}, not {strides}")
        for number, (each, version) in enumerate(zip(self._trained, self._versions or [])):
            if each._version != version:
                raise ValueError(f"parameter {number} was changed since the last step, which its master does not know: call "
                                 "take_parameters() on all ranks after such a change")
        for piece, tensor in zip(self._own_shard, [] if self._own.has_masters() else self._tensors):
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
        self.state: collections.defaultdict[torch.Tensor, Any] = collections.defaultdict(dict)
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


def _made(hook: CommHook, group: dist.ProcessGroup) -> Any:
    """The hook in C++."""
    if not isinstance(hook, CommHook):
        raise TypeError(f"hook: must be a CommHook, but is a {type(hook).__name__}")
    if hook.process_group != group:
        raise ValueError("hook: averages over another process group")
    return hook._own()

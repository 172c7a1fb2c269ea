"""Communication hooks of DistributedDataParallel, which run in C++."""
import contextlib
import enum
import weakref
from typing import Any, Callable, Optional, Sequence, TypeVar, Union

import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel

from narrowcast._closing import close_with
from narrowcast._group import group_or_default
from narrowcast._options import Option, call_text, passable, wrong
from narrowcast._states import states_of_rank

HookStateDict = dict[str, Any]
_Hook = TypeVar("_Hook", bound=Callable[..., torch.futures.Future[torch.Tensor]])
_in_place: "weakref.WeakSet[Callable[..., Any]]" = weakref.WeakSet()


def hook_names() -> list[str]:
    """The names of all hooks, in the order of docs/reference/hooks.md."""
    return torch.ops.narrowcast.comm_hook_names()


class CommHook:
    """A hook and its state, for one DistributedDataParallel: `ddp.register_comm_hook(CommHook("int8"), comm_hook)`.

    name: one of hook_names(), except "none".
    process_group: its ranks average their gradients. None is the default group at the time of the first bucket.
    options: as flags of narrowcast-train have them, e.g. error_feedback=True, levels="one", hook_format="int6_b32",
        stochastic_rounding=7 (the seed), power_sgd_rank=4. device="cpu" or "cuda", or a torch.device: where the gradients are, if
        no bucket should decide it. silence_seconds=30: how long a rank may send no heartbeat before the others' backward()
        raises an error that names it; at least 3, or 0 for never. Only in groups that move the gradients by Gloo.

    The hook is made by open(), or with the first bucket. That is a collective: ranks compare names and options, find the nodes,
    and may measure the network. All ranks must use the same names and options. It raises ValueError or TypeError, naming the
    option, on all ranks, if an option of any rank is unknown, of a wrong type, out of range or without effect, and ValueError
    if they differ. If a rank or the network fails, backward() raises torch.distributed.DistBackendError (a RuntimeError)."""

    def __init__(self, name: str = "auto", process_group: Optional[dist.ProcessGroup] = None, **options: Option) -> None:
        self._hook_name = name
        self._options = options
        self._process_group = process_group
        self._made: Any = None
        self._finalizer: Any = None
        self._first_step = 0  # Of this hook. Negative if a state was loaded after passes.

    def open(self, device: Union[None, str, torch.device] = None) -> "CommHook":
        """Makes the hook, for gradients on `device`; does nothing if it is made. A collective. Returns the hook. ValueError
        without a device, if the group moves tensors of CPUs and of GPUs, and after close()."""
        if self._finalizer is not None:
            if not self._finalizer.alive:
                raise ValueError(f"hook '{self._hook_name}' is closed: make another CommHook")
            return self
        self._made = make_hook(self._hook_name, self._options, self.process_group, device)
        self._finalizer = close_with(self, self._made.close)
        return self

    def close(self) -> None:
        """Ends the hook; unfinished exchanges fail. Not needed: a hook that is collected is closed."""
        if self._finalizer is not None:
            self._finalizer()

    def run(self, bucket: dist.GradBucket) -> torch.futures.Future[torch.Tensor]:
        """Returns at once a future of the averaged bucket, which replaces `bucket.buffer()`."""
        check_bucket(bucket)
        if self._made is None:
            self.open(bucket.buffer().device)
        return run_hook(self._made, bucket)

    @property
    def process_group(self) -> dist.ProcessGroup:
        """The group whose ranks average."""
        return group_or_default(self._process_group)

    @property
    def name(self) -> str:
        """The name of the hook."""
        return self._hook_name

    @property
    def nodes(self) -> str:
        """Nodes and ranks per node, as "2 x 4"; empty for hooks that do not use nodes."""
        return self._own().nodes()

    @property
    def decision(self) -> str:
        """What "auto" chose for each bucket size, and why; empty for other hooks."""
        return self._own().decision()

    @property
    def payload_bytes_sent(self) -> int:
        """Bytes of gradients that this rank has sent: codes and scales."""
        return self._own().payload_bytes_sent()

    @property
    def compression(self) -> Optional[float]:
        """float32 bytes of the buckets divided by the bytes of their last messages; None if nothing was sent, and for hooks that
        only count their payload."""
        return self._own().compression()

    @property
    def keeps_replicas_equal(self) -> bool:
        """Whether all ranks end a step with the same gradients, bit for bit."""
        return self._own().keeps_replicas_equal()

    def predicted_seconds(self, numel: int) -> Optional[float]:
        """Seconds that "auto" expects for a float32 bucket of `numel` elements; None for other hooks."""
        return self._own().predicted_seconds(numel)

    @property
    def steps(self) -> int:
        """Averaged backward passes so far; for PowerSGD, also those before it was saved."""
        return self._first_step + (0 if self._made is None else self._made.passes())

    def rescale_state(self, factor: float) -> None:
        """Multiplies what error feedback keeps by a positive factor: the new loss scale divided by the old one, when
        torch.amp.GradScaler changes it. On all ranks, between steps."""
        self._own().rescale_state(factor)

    def state_dict(self, model: torch.nn.Module) -> HookStateDict:
        """What this rank needs to resume, for torch.save, between steps. `model`: the one with this hook, or its module; ValueError
        for another one. Parameters may have been frozen after a step."""
        names, parameters = _named_parameters(model)
        return {"hook": self._hook_name, "rank": self.process_group.rank(), "world_size": self.process_group.size(),
                "tensors": self._own().state(names, parameters)}

    def load_state_dict(self, saved: Union[HookStateDict, Sequence[HookStateDict]], model: torch.nn.Module) -> None:
        """Resumes before the first step. `saved`: what state_dict returned on this rank, or what it returned on all ranks, in
        their order; only with all of them may the number of ranks have changed. Raises ValueError or TypeError for something
        else, and for a state of another hook or number of ranks, or of parameters that the model does not have, and RuntimeError,
        naming the entry, for one that is damaged."""
        all_saved, own = states_of_rank(saved, self.process_group, ("hook", "tensors"))
        for each in all_saved:
            if each["hook"] != self._hook_name:
                raise ValueError(f"the state is of hook '{each['hook']}', but the hook is '{self._hook_name}'")
        self.load_tensors(all_saved[0]["world_size"], [each["tensors"] for each in own], all_saved[0]["tensors"], model)

    def load_tensors(self, world_size: int, own: list[dict[str, torch.Tensor]], first: dict[str, torch.Tensor],
                     model: torch.nn.Module) -> None:
        """load_state_dict of the tensors alone: those that this rank takes over, and those of former rank 0."""
        self._own().load_state(world_size, own, first, *_named_parameters(model))
        self._first_step = int(first.get("iterations", 0)) - self._own().passes()

    def __repr__(self) -> str:
        return call_text(type(self).__name__, self._hook_name, **self._options)

    def __getstate__(self) -> Any:
        if self._finalizer is not None or self._process_group is not None:
            raise TypeError("a CommHook with a group or that was made cannot be pickled or copied: save state_dict(model)")
        return self.__dict__

    def _own(self) -> Any:
        if self._made is None:
            raise RuntimeError(f"hook '{self._hook_name}' is not made before its first bucket: call open(device) on all ranks")
        return self._made


def make_hook(name: str, options: dict[str, Option], group: dist.ProcessGroup, device: Union[None, str, torch.device]) -> Any:
    """The hook in C++, which must be closed (close_with). A collective; see CommHook for the errors."""
    if not isinstance(name, str):
        hint = f": call register_ddp_comm_hook({name}, model)" if isinstance(name, enum.Enum) else ""
        name, options = "auto", wrong(TypeError(f"name: must be the name of a hook, such as \"int8\", but is {name}{hint}"))
    given_device = device if options.get("device") is None else options["device"]
    if isinstance(given_device, (str, torch.device)):
        options = {**options, "device": str(given_device).partition(":")[0]}
    with _current(given_device):  # Hooks measure on the current GPU.
        return torch.classes.narrowcast.CommHook(name, passable(options), group.group_name)


def _current(device: object) -> contextlib.AbstractContextManager[Any]:
    is_gpu = isinstance(device, (str, torch.device)) and str(device).startswith("cuda:")
    return torch.cuda.device(device) if is_gpu else contextlib.nullcontext()


_NO_BUCKETS = ('torch._dynamo.config.optimize_ddp="python_reducer" gives hooks single gradients, and narrowcast\'s hooks average '
               'buckets: use "ddp_optimizer", the default, or fp16_compress_hook or bf16_compress_hook of ddp_comm_hooks')


def check_bucket(bucket: Any) -> None:
    """ValueError for (gradient, parameter), which DistributedDataParallel passes in the mode "python_reducer"."""
    if isinstance(bucket, tuple):
        raise ValueError(_NO_BUCKETS)


def run_hook(hook: Any, bucket: dist.GradBucket) -> torch.futures.Future[torch.Tensor]:
    """CommHook.run of a hook in C++."""
    buffer = bucket.buffer()
    return hook.run_for_reducer(buffer, buffer, bucket.index(), bucket.is_last(), bucket.parameters())


def averaging_in_place(hook: _Hook) -> _Hook:
    """Decorates a hook that ends with run_hook: the value of its future is bucket.buffer()."""
    _in_place.add(hook)
    return hook


def averages_in_place(hook: Callable[..., Any]) -> bool:
    """Whether it is such a hook."""
    return hook in _in_place


@averaging_in_place
def comm_hook(state: CommHook, bucket: dist.GradBucket) -> torch.futures.Future[torch.Tensor]:
    """The hook of every CommHook, for DistributedDataParallel.register_comm_hook(state, comm_hook)."""
    check_state(state, CommHook, 'narrowcast.CommHook("int8")')
    return state.run(bucket)


def check_state(state: object, kind: type, example: str) -> None:
    """TypeError unless the state of a hook is of that kind."""
    if not isinstance(state, kind):
        raise TypeError(f"state: must be a {kind.__name__}, but is {state!r}: register_comm_hook({example}, ...)")


# The hooks that average sparse gradients on CPUs. In C++ the others refuse their buckets.
_TAKE_SPARSE = ("allreduce", "bf16_compress", "noop", "post_local_sgd")


def _check_sparse(name: str, model: torch.nn.Module) -> None:
    for module_name, module in model.named_modules():
        is_sparse = isinstance(module, (torch.nn.Embedding, torch.nn.EmbeddingBag)) and module.sparse
        if is_sparse and module.weight.requires_grad and name not in _TAKE_SPARSE:
            raise ValueError(f"{name}: module '{module_name}' makes sparse gradients, but this hook averages only dense ones: create "
                             "the module with sparse=False, or use the hook allreduce or bf16_compress")


def register(model: DistributedDataParallel, name: str = "auto", process_group: Optional[dist.ProcessGroup] = None,
             **options: Option) -> CommHook:
    """Makes a hook for the gradients of `model` and registers it. A collective. Returns the hook. Without a process group, the
    ranks of the model's average. `model` may be compiled by torch.compile. See CommHook for names, options and errors. TypeError
    for a model that is not wrapped, or wrapped by something else, e.g. FullyShardedDataParallel."""
    ddp = _without_compiler(model)
    if not isinstance(ddp, DistributedDataParallel):
        is_sharded = any("FSDP" in each.__name__ or "Sharded" in each.__name__ for each in type(ddp).__mro__)
        raise TypeError(f"model: must be a DistributedDataParallel, but is a {type(ddp).__name__}"
                        + ("; gradients of fully_shard are averaged with narrowcast.fsdp" if is_sharded else ""))
    if getattr(ddp, "_use_python_reducer", False):
        options = wrong(ValueError(_NO_BUCKETS))
    try:
        _check_sparse(name, ddp.module)
    except ValueError as error:  # An error on all ranks.
        options = wrong(error)
    hook = CommHook(name, ddp.process_group if process_group is None else process_group, **options).open(_gradient_device(ddp))
    ddp.register_comm_hook(hook, comm_hook)
    return hook


def _without_compiler(model: torch.nn.Module) -> torch.nn.Module:
    """The module that torch.compile has wrapped."""
    return getattr(model, "_orig_mod", model)


def _gradient_device(model: torch.nn.Module) -> Optional[torch.device]:
    return next((each.device for each in model.parameters() if each.requires_grad), None)


def _named_parameters(model: torch.nn.Module) -> tuple[list[str], list[torch.Tensor]]:
    model = _without_compiler(model)
    module = _without_compiler(model.module) if isinstance(model, DistributedDataParallel) else model
    # A parameter that is frozen now may have state. The first one decides the device of loaded states.
    named = sorted(module.named_parameters(), key=lambda each: not each[1].requires_grad)
    return [name for name, _ in named], [each for _, each in named]

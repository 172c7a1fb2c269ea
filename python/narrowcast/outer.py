"""Training with few exchanges: ranks take local steps, and exchange parameters from time to time."""
import contextlib
from typing import Any, Callable, Iterator, Optional, Sequence, Union

import torch
import torch.distributed as dist

from narrowcast._closing import close_with
from narrowcast._group import group_or_default
from narrowcast._options import Option, call_text, passable
from narrowcast._states import states_of_rank


class DiLoCo:
    """Wraps an optimizer: every `sync_every` steps the ranks exchange how far they moved, and take the same outer step
    (DiLoCo, arXiv 2311.08105). Gradients are not averaged, so the model needs no DistributedDataParallel.

        outer = narrowcast.DiLoCo(torch.optim.AdamW(model.parameters()), sync_every=30)
        loss.backward(); outer.step(); outer.zero_grad()
        ...
        outer.finish()                   # all ranks take the outer parameters

    With `sync_seconds` instead, a round has as many steps as a rank can take in that time, at least one, and the mean is weighted
    by steps: nobody waits for longer than a step of the slowest rank. At its end all ranks continue with the step number of the
    fastest one. Clocks decide here, so results differ from run to run.

        outer = narrowcast.DiLoCo(torch.optim.AdamW(model.parameters()), sync_seconds=30.)
        while outer.steps < 3000:        # not `for`: the number may jump
            ...; outer.step()
        outer.finish()

    optimizer: takes the inner steps. TypeError, before anything is sent, for something else. The parameters of all its groups that require gradients are exchanged; they are float32,
        float16 or bfloat16, on one device.
    init_sync: these parameters begin as rank 0's. Otherwise they must be equal. Other parameters and buffers are never sent: if the
        optimizer gets one that requires gradients, or one of its frozen ones is unfrozen, the next step raises ValueError.
    options: as flags of narrowcast-train have them: outer_optimizer ("nesterov", "sgd" or "average": local SGD),
        outer_learning_rate, outer_momentum, outer_format ("int8_b128"; by default "fp32"), outer_error_feedback,
        outer_error_decay, fragments, overlap_steps, outer_mix, outer_warmup, first_exchange, stochastic_rounding, levels,
        node_size, link_gbit, link_us, connections; and silence_seconds as for CommHook. With sync_seconds or outer_quorum also local_group
        ("node" by default, "none" or a number), as of the hook post_local_sgd: ranks that take the same steps. With outer_quorum=Q
        an outer step is taken once Q such groups have sent and outer_grace_seconds (0) have passed; late groups are in a later one, and
        `steps` may jump. Sparse formats ("top2_15") refuse the
        momentum of "nesterov": with them pass "sgd", outer_error_feedback=True and an outer_learning_rate of about 3.

    Making it is a collective, and so are step, skip_step, finish, outer_parameters and the functions for state: all ranks call
    them in the same order. Raises ValueError or TypeError on all ranks if options of any rank are wrong, or if options, or shapes
    and dtypes of parameters, differ between ranks; nothing is changed then. Raises torch.distributed.DistBackendError if a rank
    or the network fails."""

    def __init__(self, optimizer: torch.optim.Optimizer, process_group: Optional[dist.ProcessGroup] = None, *,
                 sync_every: Optional[int] = None, sync_seconds: Optional[float] = None, outer_optimizer: str = "nesterov",
                 init_sync: bool = True, **options: Option) -> None:
        if not isinstance(getattr(optimizer, "param_groups", None), list) or not hasattr(optimizer, "step"):
            raise TypeError("optimizer: must be an optimizer, such as torch.optim.AdamW(model.parameters()), but is a "
                            f"{type(optimizer).__name__}")
        if sync_every is None and sync_seconds is None:
            raise TypeError("DiLoCo: needs sync_every or sync_seconds")
        self.optimizer = optimizer
        self.process_group = group_or_default(process_group)
        parameters = [each for _, each in self._trained()]
        self._exchanged = set(parameters)  # By identity.
        given = {name: value for name, value in (("sync_every", sync_every), ("sync_seconds", sync_seconds)) if value is not None}
        options = {**given, "outer_optimizer": outer_optimizer, "init_sync": init_sync, **options}
        self._text = call_text(type(self).__name__, **options).replace("(", f"({type(optimizer).__name__}, ", 1)
        self._has_outer_parameters = False
        self._own = torch.classes.narrowcast.OuterOptimizer(parameters, passable(options), self.process_group.group_name)
        self._finalizer = close_with(self, self._own.close)

    def step(self, closure: Optional[Callable[[], Any]] = None) -> Any:
        """A step of the optimizer, and the exchange that is due. Returns what the optimizer's step returns. Raises ValueError,
        before the step, for a parameter that would never be exchanged."""
        self._check_parameters()
        result = self.optimizer.step() if closure is None else self.optimizer.step(closure)
        self._own.step()
        return result

    @property
    def param_groups(self) -> list[dict[str, Any]]:
        """The optimizer's, so that torch.amp.GradScaler takes this object in its place."""
        return self.optimizer.param_groups

    def skip_step(self) -> None:
        """Instead of step() on a rank that skips the optimizer's step, e.g. for a gradient that is not finite. A GradScaler skips
        such a step by itself, and this must be called after it."""
        self._check_parameters()
        self._own.skip_step()

    def zero_grad(self, set_to_none: bool = True) -> None:
        """The optimizer's zero_grad."""
        self.optimizer.zero_grad(set_to_none)

    def finish(self) -> None:
        """All ranks take the outer parameters. Call it after the last step, which should be a multiple of sync_every. With
        sync_seconds it ends the round first."""
        self._check_parameters()
        self._own.finish()

    def end_round(self) -> None:
        """With sync_seconds: the round ends now on this rank, which waits for the others to end theirs. All ranks call it, or their
        step() ends the round."""
        self._check_parameters()
        self._own.end_round()

    def restart_clock(self) -> None:
        """With sync_seconds, before the first step of a round: the time since the last round does not count, e.g. of a checkpoint.
        Nor does the time in a block of outer_parameters()."""
        self._own.restart_clock()

    @contextlib.contextmanager
    def outer_parameters(self) -> Iterator[None]:
        """The model has the outer parameters within the block, e.g. to evaluate it; no step may be taken there."""
        self._check_own_parameters()
        self._own.take_outer_parameters()
        self._has_outer_parameters = True
        try:
            yield
        finally:
            self._has_outer_parameters = False
            self._own.restore_own_parameters()

    def close(self) -> None:
        """Waits for the exchange that is under way, and ends."""
        self._finalizer()

    @property
    def is_warming_up(self) -> bool:
        """Whether gradients of the next step must be averaged over all ranks (outer_warmup)."""
        return self._own.is_warming_up()

    @property
    def steps(self) -> int:
        """Steps so far, taken and skipped. With sync_seconds or outer_quorum, a rank that has taken fewer in a round than another jumps to the other's
        number at the end of the round, and leaves out the batches between."""
        return self._own.steps()

    @property
    def steps_are_common(self) -> bool:
        """Whether `steps` is the same on all ranks, so that they may call a collective: False within a round of sync_seconds or outer_quorum."""
        return self._own.steps_are_common()

    @property
    def exchanges(self) -> int:
        """Exchanges so far."""
        return self._own.exchanges()

    @property
    def lost_exchanges(self) -> int:
        """Exchanges whose mean was not finite; all ranks ignored them."""
        return self._own.lost_exchanges()

    @property
    def payload_bytes_sent(self) -> int:
        """Bytes that this rank has sent."""
        return self._own.payload_bytes_sent()

    def state_dict(self) -> dict[str, Any]:
        """What this rank needs to resume, besides parameters and the optimizer's state."""
        replica, own = self._own.state()
        return {"rank": self.process_group.rank(), "world_size": self.process_group.size(), "replica": replica, "own": own}

    def load_state_dict(self, saved: Union[dict[str, Any], Sequence[dict[str, Any]]]) -> None:
        """Resumes before the first step, with the same options. `saved`: what state_dict returned on this rank, or on all ranks
        in their order; only with all of them may the number of ranks have changed. Raises ValueError or TypeError for something
        else."""
        all_saved, own = states_of_rank(saved, self.process_group, ("replica", "own"))
        self._own.load_state(all_saved[0]["replica"], all_saved[0]["world_size"], [each["own"] for each in own],
                             all_saved[0]["own"])

    def __repr__(self) -> str:
        return self._text

    def _trained(self) -> Iterator[tuple[int, torch.Tensor]]:
        """The parameters that require gradients, and the numbers of their groups."""
        for number, group in enumerate(self.optimizer.param_groups):
            for each in group["params"]:
                if each.requires_grad:
                    yield number, each

    def _check_own_parameters(self) -> None:
        if self._has_outer_parameters:
            raise ValueError("the model has the outer parameters: leave the block of outer_parameters() first")

    def _check_parameters(self) -> None:
        self._check_own_parameters()
        for number, each in self._trained():
            if each not in self._exchanged:
                raise ValueError(f"a parameter {list(each.shape)} of parameter group {number} is new or was frozen when DiLoCo was "
                                 "made, so it is not exchanged and would differ between ranks: make another DiLoCo, after finish()")

"""A training whose progress is read from its metrics, and how it goes on after a fault."""
import dataclasses
import json
import math
import os
import time

from training import Training, living, wait_until

# The maximum time from a fault to the next step.
LIMIT_SECONDS = 60
_UNHARMED = object()
_TAIL_BYTES = 1 << 15


@dataclasses.dataclass(frozen=True)
class Moment:
    """A training just before a fault."""
    time: float  # monotonic
    workers: dict  # process ids by rank
    events: frozenset  # in the metrics so far
    step: int


@dataclasses.dataclass(frozen=True)
class Recovery:
    """How a training went on after a fault."""
    seconds: float  # to the next completed step
    in_place: bool  # else all ranks started again
    lost_steps: int  # that were done again


class MeteredTraining(Training):
    """A training of `ranks` ranks with --log_every=1."""

    def __init__(self, ranks, *arguments, **options):
        super().__init__(*arguments, **options)
        self.ranks = ranks

    def metrics(self):
        """The complete lines of metrics.jsonl."""
        return self._read()

    def newest(self):
        return _newest_step(self._last_lines())

    def moment(self):
        lines = self.metrics()
        return Moment(time.monotonic(), self.workers(), frozenset(map(_identity, lines)), _newest_step(lines))

    def wait_for_recovery(self, before, what, patience=math.inf, limit=LIMIT_SECONDS):
        """Waits for the next step after a recovery in place, or for the first step of new processes after all that
        lived before the fault have ended, for at most `limit` seconds. Returns None once the training has done `patience`
        steps without either."""
        known, newest, in_place = before.events, before.step, True

        def recovered():
            nonlocal known, newest, in_place
            self.start_lost()
            if in_place and not living(before.workers.values()):
                in_place = False
                lines = self.metrics()
                known, newest = frozenset(map(_identity, lines)), max(newest, _newest_step(lines))
            new = self._new_lines(known)
            # A report may be written again, but not before the training has recovered.
            resumed = _last_recovered_step(new) if in_place else _first_step(new) - 1
            if _newest_step(new) <= resumed or len(self.workers()) != self.ranks:
                return in_place and self.newest() > before.step + patience and _UNHARMED
            return Recovery(time.monotonic() - before.time, in_place, max(0, newest - resumed))

        found = wait_until(recovered, limit, what)
        return None if found is _UNHARMED else found

    def lines_after(self, moment):
        return self._new_lines(moment.events)

    def _new_lines(self, known):
        return [line for line in self._last_lines() if _identity(line) not in known]

    def _last_lines(self):
        return self._read(from_end=_TAIL_BYTES)

    def _read(self, from_end=None):
        try:
            with open(self.folder / "run/metrics.jsonl", "rb") as file:
                is_cut = from_end is not None and os.fstat(file.fileno()).st_size > from_end
                if is_cut:
                    file.seek(-from_end, os.SEEK_END)
                lines = file.read().splitlines(keepends=True)
        except FileNotFoundError:
            return []
        return [json.loads(line) for line in lines[1 if is_cut else 0:] if line.endswith(b"\n")]


def _newest_step(lines):
    return max((line["step"] for line in lines if line["event"] == "step"), default=0)


def _identity(line):
    """Different for the same step done again."""
    return line["event"], line.get("step"), line.get("seconds")


def _first_step(lines):
    return min((line["step"] for line in lines if line["event"] == "step"), default=math.inf)


def _last_recovered_step(lines):
    return max((line["step"] for line in lines if line["event"] == "recovery"), default=math.inf)

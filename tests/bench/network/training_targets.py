"""What trainings with few bytes must reach beside others of the same run, and whether measured ones do."""
import dataclasses
import math
import statistics

from networks import Layout
from targets import Check
from trainings import OF_PYTHON

# Targets of time and bytes are for this network with one rank per node: of several, each one's payload is another share of
# what leaves the node.
COSTS_NETWORK = (1, "0.1")
PYTHON_NETWORK = (Layout(2, 1), "1")  # Those of trainings in Python are for this one.


@dataclasses.dataclass(frozen=True)
class Speed:
    """A step is at least so many times as fast as with another way. Ways are named as in variants.py."""
    way: str
    other: str
    least: float

    def check(self, costs):
        reached = costs[self.other][0] / costs[self.way][0]
        return _check(self, f"x {self.other}", f"{reached:.2f}", f">= {self.least:g}", reached >= self.least)


@dataclasses.dataclass(frozen=True)
class Bytes:
    """A step sends at most this part of another way's bytes."""
    way: str
    other: str
    part: int

    def check(self, costs):
        reached = costs[self.other][1] / costs[self.way][1]
        return _check(self, f"bytes of {self.other}", f"1/{reached:.0f}", f"<= 1/{self.part}", reached >= self.part)


@dataclasses.dataclass(frozen=True)
class Loss:
    """After equal steps the validation loss, on average over the seeds, is at most so much above another way's;
    `standard_errors`: or so many of them more, which are those of the seeds' differences."""
    way: str
    other: str
    most: float
    standard_errors: int = 0

    def check(self, curves):
        """Of one seed after the other in both lists of curves."""
        gaps = [own[-1][1] - others[-1][1] for own, others in zip(curves[self.way], curves[self.other])]
        gap, error = statistics.fmean(gaps), math.inf
        if len(gaps) > 1:
            error = statistics.stdev(gaps) / math.sqrt(len(gaps))
        spread = f" (s.e. {error:.3f}, {len(gaps)} seeds)" if len(gaps) > 1 else " (one seed)"
        allowed = self.most + (self.standard_errors * error if self.standard_errors else 0)
        more = f" + {self.standard_errors} s.e." if self.standard_errors else ""
        return _check(self, f"loss above {self.other}", f"{gap:+.3f}{spread}", f"<= {self.most:g}{more}", gap <= allowed)


def _check(target, measure, reached, limit, holds):
    return Check(target.way, measure, reached, limit, "holds" if holds else "MISSED")


PYTHON = (Speed(OF_PYTHON + "int8_b128", OF_PYTHON + "bf16_compress", 1.3),)
COSTS = (Speed("power_sgd rank 4", "bf16_compress", 8),
         Speed("DiLoCo every 30, int4_b32", "bf16_compress", 10),
         Bytes("DiLoCo every 100, int4_b32", "none", 400))
LOSSES = tuple(Loss(f"DiLoCo every 30, {wire}", "none", .02) for wire in ("fp32", "int8_b128", "int4_b32")) + tuple(
    Loss(f"power_sgd rank 4{way}", "power_sgd rank 4", 0, standard_errors=2)
    for way in (" alternate", " averaged memory", ", int8_b128", ", int4_b32"))


def _of_measured(targets, measured):
    return [target.check(measured) for target in targets if target.way in measured and target.other in measured]


def checks(costs, curves, layout, rate):
    """Of what was measured with a layout at `rate`, in the form of variants.rows(): either may lack ways, or be empty."""
    of_costs = COSTS if (layout.ranks_per_node, rate) == COSTS_NETWORK else ()
    return _of_measured(of_costs, costs) + _of_measured(LOSSES, curves)


def checks_of_python(best, layout, rate):
    """Of trainings in Python, each with its best size of buckets, as step_times.best() has them."""
    seconds = {hook: (least,) for hook, (_, least) in best.items()}
    return _of_measured(PYTHON if (layout, rate) == PYTHON_NETWORK else (), seconds)

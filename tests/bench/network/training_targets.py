"""The targets of trainings with few bytes, relative to others of the same run, and the check of measured values."""
import dataclasses
import math
import statistics

from networks import Layout
from targets import Check
from trainings import OF_PYTHON

# Targets of time and bytes apply to this network with one rank per node. With several ranks, one rank's payload is a
# different share of the bytes that leave the node.
COSTS_NETWORK = (1, "0.1")
PYTHON_NETWORK = (Layout(2, 1), "1")  # Targets of trainings in Python apply to this network.


@dataclasses.dataclass(frozen=True)
class Speed:
    """A step is at least `least` times as fast as with the other method. Methods are named as in variants.py."""
    way: str
    other: str
    least: float

    def check(self, costs):
        reached = costs[self.other][0] / costs[self.way][0]
        return _check(self, f"x {self.other}", f"{reached:.2f}", f">= {self.least:g}", reached >= self.least)


@dataclasses.dataclass(frozen=True)
class Bytes:
    """A step sends at most 1/`part` of the other method's bytes."""
    way: str
    other: str
    part: int

    def check(self, costs):
        reached = costs[self.other][1] / costs[self.way][1]
        return _check(self, f"bytes of {self.other}", f"1/{reached:.0f}", f"<= 1/{self.part}", reached >= self.part)


@dataclasses.dataclass(frozen=True)
class Loss:
    """After equal steps the validation loss, averaged over the seeds, is at most `most` above the other method's loss.
    `standard_errors` relaxes this by a number of standard errors of the seeds' differences."""
    way: str
    other: str
    most: float
    standard_errors: int = 0

    def check(self, curves):
        """Compares the two lists of curves seed by seed."""
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


PYTHON = (Speed(OF_PYTHON + "narrowcast.int8", OF_PYTHON + "bf16_compress", 1.3),)
COSTS = (Speed("power_sgd rank 4", "bf16_compress", 8),
         Speed("DiLoCo every 30, int4_b32", "bf16_compress", 10),
         Bytes("DiLoCo every 100, int4_b32", "none", 400),
         Bytes("SparseLoCo every 30, top2_15", "none", 3000))
LOSSES = tuple(Loss(f"DiLoCo every 30, {wire}", "none", .02) for wire in ("fp32", "int8_b128", "int4_b32")) + tuple(
    Loss(f"power_sgd rank 4{way}", "power_sgd rank 4", 0, standard_errors=2)
    for way in (" alternate", " averaged memory", ", int8_b128", ", int4_b32")) + (
    Loss("SparseLoCo every 30, top2_15", "none", .005),)


def _of_measured(targets, measured):
    return [target.check(measured) for target in targets if target.way in measured and target.other in measured]


def checks(costs, curves, layout, rate):
    """The checks of measurements with a layout at `rate`, in the form of variants.rows(); either may lack methods, or
    be empty."""
    of_costs = COSTS if (layout.ranks_per_node, rate) == COSTS_NETWORK else ()
    return _of_measured(of_costs, costs) + _of_measured(LOSSES, curves)


def checks_of_python(best, layout, rate):
    """The checks of trainings in Python, each with its best bucket size, as returned by step_times.best()."""
    seconds = {hook: (least,) for hook, (_, least) in best.items()}
    return _of_measured(PYTHON if (layout, rate) == PYTHON_NETWORK else (), seconds)

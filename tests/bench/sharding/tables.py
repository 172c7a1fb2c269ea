"""Tables of memory and time by way, and the checks of narrowcast's targets."""
import dataclasses
import statistics

from targets import Check
from ways import WAYS

OFF, DDP = "off", "ddp"
MEMORY_TOLERANCE = .1  # How far the measured memory may be from the formula.
TIME_TOLERANCE = .03  # How much longer a step may be than without shards; two measurements of one way differ by as much.
UNSHARDED = {"node": OFF, "node_fp32": "off_fp32", "node_int8": "off_int8"}  # With the same hook.


@dataclasses.dataclass
class Measured:
    """Of one way with one size and layout."""
    seconds: list = dataclasses.field(default_factory=list)  # of each step
    peak: float = 0  # bytes of the largest rank, with the size as it is
    per_parameter: float = 0  # bytes that the training adds in the largest rank


def per_parameter(wide, narrow, added):
    """The bytes that a rank holds for each of `added` parameters: the difference between two models, of the rank where
    it is greatest. `wide`, `narrow`: peak bytes by rank."""
    return max(wide[rank] - narrow[rank] for rank in wide) / added


def rows(found, layout, has_views):
    """A table as lists of words. `found`: Measured by way."""
    medians = {way: statistics.median(measured.seconds) for way, measured in found.items()}
    table = [["way", "steps", "s per step", f"x {DDP}", f"x {OFF}", "bytes/parameter", "formula", "ratio", "MB in all"]]
    for way, measured in found.items():
        formula = WAYS[way].bytes_per_parameter(layout, has_views)
        speeds = [f"{medians[other] / medians[way]:.2f}" if other in medians else "" for other in (DDP, OFF)]
        table.append([way, str(len(measured.seconds)), f"{medians[way]:.3f}", *speeds, f"{measured.per_parameter:.2f}",
                      f"{formula:.2f}", f"{measured.per_parameter / formula:.2f}", f"{measured.peak / 1e6:.0f}"])
    return table


def checks(size, found, layout, has_views):
    """narrowcast's targets: the memory is that of the formula, and sharding within nodes costs no time."""
    for way, measured in found.items():
        if not WAYS[way].python:
            ratio = measured.per_parameter / WAYS[way].bytes_per_parameter(layout, has_views)
            yield _check(f"{way}, {size}, {layout}", "memory / formula", ratio, 1 - MEMORY_TOLERANCE, 1 + MEMORY_TOLERANCE)
        if UNSHARDED.get(way) in found:
            other = UNSHARDED[way]
            ratio = statistics.median(measured.seconds) / statistics.median(found[other].seconds)
            yield _check(f"{way}, {size}, {layout}", f"seconds / {other}", ratio, 0, 1 + TIME_TOLERANCE)


def _check(case, measure, ratio, least, most):
    limit = f"{least:g} to {most:g}" if least else f"<= {most:g}"
    return Check(case, measure, f"{ratio:.2f}", limit, "holds" if least <= ratio <= most else "MISSED")

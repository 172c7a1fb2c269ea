"""The bytes that a step sends, by the counters of the nodes' interfaces. Import it with tests/bench/network in the
path."""
import dataclasses

from targets import Check
from ways import WAYS

STEPS = 10, 30  # The trainings' lengths: everything that is sent once cancels.
TOLERANCE = .01  # How far the counted bytes may be from the formula.
# Nothing is measured, because measurements send as much as fits into a time.
FIXED = ["--bucket_cap_mb=6"]
FIXED_LINK = ["--link_gbit=1", "--link_us=100"]  # Only hooks in wire formats take it.


@dataclasses.dataclass
class Sent:
    """Of one way, by the node that sends most: bytes per step by its interface, and by its shaper, if it has one."""
    interface: float
    shaper: float = None


def per_step(counters):
    """`counters`: for each length in STEPS, those of Network.counters that each node counted during the training."""
    shorter, longer = counters
    steps = STEPS[1] - STEPS[0]
    nodes = [{name: (more[name] - less[name]) / steps for name in less} for less, more in zip(shorter, longer)]
    most = max(nodes, key=lambda node: node["tx_bytes"])
    return Sent(most["tx_bytes"], most.get("shaped_bytes"))


def counted(network, way, command):
    """The counters of each node during the trainings of both lengths. `command`: all but the steps and the folder."""
    flags = FIXED + (FIXED_LINK if WAYS[way].hook != "none" else [])

    def counters():
        return [network.counters(node) for node in range(network.hosts)]

    for steps in STEPS:
        before = counters()
        network.run_ranks([*command, *flags, f"--steps={steps}"])
        yield [{name: now[name] - then[name] for name in now} for then, now in zip(before, counters())]


def rows(found, size, layout):
    """A table as lists of words. `found`: Sent by way."""
    table = [["way", "formula, MB", "interface, MB", "ratio", "with every packet's headers"]]
    for way, sent in found.items():
        formula = WAYS[way].sent_bytes(size, layout)
        shaper = f"{sent.shaper / formula:.4f}" if sent.shaper else ""
        table.append([way, f"{formula / 1e6:.3f}", f"{sent.interface / 1e6:.3f}", f"{sent.interface / formula:.4f}", shaper])
    return table


def checks(found, size, layout):
    for way, sent in found.items():
        ratio = sent.interface / WAYS[way].sent_bytes(size, layout)
        holds = abs(ratio - 1) <= TOLERANCE
        yield Check(f"{way}, {layout}", "bytes / formula", f"{ratio:.4f}", f"{1 - TOLERANCE:g} to {1 + TOLERANCE:g}",
                    "holds" if holds else "MISSED")

"""The speeds that the hooks must reach on simulated networks, and whether measured ones do.

Of two lines below that name the same ratio, both must hold. With one rank per node bytes allow int8 (int8_b128: 8.125 bits
an element) at most 3.94 times the speed of allreduce and 1.97 times that of bf16_compress, and int4 (int4_b32: 4.5 bits) 7.1
and 3.6 times. With several they allow more. Gloo's ring passes from node to node once: a node of N with G ranks each sends
2(NG-1)/(NG) of a bucket, and need send only 2(N-1)/N of one, once for all its ranks. For 2 x 2, 2 x 4 and 4 x 2 that is a
further 1.5, 1.75 and 1.17 times.
"""
import dataclasses

import text_table
from networks import RATES, Layout, rate_text

MIB = 1 << 20
BUCKET = 25 * MIB
SMALL_BUCKETS = (64 << 10, 256 << 10, MIB)
RATES_OF_TARGETS = ("1", "10", "open")
WORLDS = (2, 4, 8)  # Nodes of one rank.
ALLREDUCE, BF16, INT8, FP32, AUTO = "allreduce", "bf16_compress", "int8", "fp32", "auto"

# What auto chooses between, as measured by themselves in the same run; and those of them with 32 and 16 bits.
CANDIDATES = (ALLREDUCE, FP32, BF16, INT8)
WIDE = (ALLREDUCE, FP32, BF16)

# What the shaper counts of a full packet: 1500 bytes of IP and 14 of the Ethernet header, which carry 1448 of payload
# after the headers of IP (20) and TCP (20, and 12 for timestamps). Preamble, checksum and gap (24 more on a real wire)
# are not counted, so they do not belong to this limit.
FRAMED = 1514 / 1448


@dataclasses.dataclass(frozen=True)
class Row:
    """Least speed-ups over allreduce, bf16_compress, int8, the fastest of CANDIDATES and that of WIDE, and the least share
    of the wire limit, of a hook in one case. With several sizes the worst one counts. The wire limit is that of one rank
    per node."""
    hook: str
    nodes: int
    rate: str
    ranks_per_node: int = 1
    buckets: int = 1
    sizes: tuple = (BUCKET,)
    allreduce: float = None
    bf16: float = None
    int8: float = None
    candidates: float = None
    wide: float = None
    wire: float = None

    @property
    def layout(self):
        return Layout(self.nodes, self.ranks_per_node)


def _rows():
    for world, allreduce, bf16, wire in ((2, 3.6, 1.9, .90), (4, 3.6, 1.9, .90), (8, 3.3, 1.8, .82)):
        yield Row("int8", world, "1", allreduce=allreduce, bf16=bf16, wire=wire)
    for world in (2, 4):
        yield Row("int8", world, "1", buckets=4, allreduce=3.8, bf16=1.93, wire=.95)
    for world in WORLDS:
        yield Row("int8", world, "10", allreduce=2.8, bf16=1.8)
    for world in (2, 4):
        yield Row("int8", world, "open", allreduce=2.5, bf16=1.9)
    for world in WORLDS:
        for rate in RATES_OF_TARGETS:
            yield Row("int8", world, rate, sizes=SMALL_BUCKETS, allreduce=1, bf16=1)
    yield Row("int4", 4, "1", allreduce=6, bf16=3.1, wire=.82)
    yield Row("int4", 4, "1", buckets=4, allreduce=6.6, bf16=3.3, wire=.92)
    for hook in ("quantize_per_tensor", "quantize_per_channel"):
        yield Row(hook, 2, "open", allreduce=1 / .65)
    for hook, nodes, ranks_per_node, allreduce, bf16 in (
            ("int8", 2, 4, 5.5, 2.9), ("int8", 2, 2, 4.8, 2.4), ("int8", 4, 2, 3.8, 1.9), ("int4", 2, 4, 8, 4.2)):
        yield Row(hook, nodes, "1", ranks_per_node, allreduce=allreduce, bf16=bf16)
    for nodes in (2, 4):
        yield Row("power_sgd", nodes, "1", int8=2.5)
    for ranks_per_node, allreduce in ((2, 4), (4, 4.5), (8, 5.5)):  # Nothing is sent, so there is no rate.
        yield Row("fp32", 1, "open", ranks_per_node, allreduce=allreduce)
    for nodes, ranks_per_node, rate in (
            [(world, 1, rate) for world in (2, 4) for rate in RATES_OF_TARGETS] +
            [(2, 2, "1"), (2, 4, "1"), (4, 2, "1")] + [(1, ranks, "open") for ranks in (2, 4, 8)]):
        # At most 3% and 2% slower: what auto has measured says no more.
        yield Row(AUTO, nodes, rate, ranks_per_node, candidates=1 / 1.03, wide=1 / 1.02)


ROWS = tuple(_rows())


@dataclasses.dataclass(frozen=True)
class Check:
    case: str
    measure: str
    reached: str
    target: str
    verdict: str  # "holds", "MISSED", "not built"


def lines(checks):
    """A table of them, and how many hold."""
    rows = [("case", "measure", "reached", "target", "")]
    rows += [(check.case, check.measure, check.reached, check.target, check.verdict) for check in checks]
    return f"{text_table.aligned(rows, 'llrrl')}\n{sum(map(holds, checks))} of {len(checks)} hold"


def holds(check):
    return check.verdict == "holds"


def wire_seconds(payload_bytes, rate):
    """The least time in which a rank can send its payload, full packets with their headers, at `rate`."""
    return payload_bytes * FRAMED * 8 / RATES[rate]


def size_text(size):
    return f"{size / MIB:g} MiB" if size >= MIB else f"{size // 1024} KiB"


def case_text(row):
    size = size_text(row.sizes[0]) if len(row.sizes) == 1 else f"{size_text(row.sizes[0])}..{size_text(row.sizes[-1])}"
    return f"{row.hook}, {rate_text(row.rate)}, {row.layout}, {row.buckets} x {size}"


def _ratios(row):
    """(name, hooks beside the fastest of which the row's hook is, target, how it is printed)."""
    single = [(f"x {other}", (other,), least, "{:.2f}")
              for other, least in ((ALLREDUCE, row.allreduce), (BF16, row.bf16), (INT8, row.int8)) if least]
    fastest = [(f"x the fastest of {name}", others, least, "{:.3f}")
               for name, others, least in (("its candidates", CANDIDATES, row.candidates), ("32 and 16 bits", WIDE, row.wide))
               if least]
    return single + fastest


def _measures(row):
    """(name, target, how it is printed, function of the times by hook that gives what was reached)."""
    for name, others, least, form in _ratios(row):
        yield name, least, form, lambda times, others=others: (
            min(times[other]["median_ms"] for other in others) / times[row.hook]["median_ms"])
    if row.wire:
        yield "of the wire limit", row.wire, "{:.1%}", lambda times: (
            1e3 * wire_seconds(times[row.hook]["payload_bytes"], row.rate) / times[row.hook]["median_ms"])


def checks(row, times, built):
    """The checks of a row. `times`: the entries of `hooks` of narrowcast-bench's JSON, for this layout and rate; `built`:
    the names of the hooks that this build has. None if not all of the row's sizes were measured."""
    found = {(time["hook"], time["bucket_bytes"], time["buckets"]): time for time in times}
    needed = [other for _, others, *_ in _ratios(row) for other in others] + [row.hook] * (row.hook in built)
    if any((hook, size, row.buckets) not in found for hook in needed for size in row.sizes):
        return None
    if row.hook not in built:
        return [Check(case_text(row), name, "-", form.format(target), "not built")
                for name, target, form, _ in _measures(row)]
    result = []
    for name, target, form, reached_of in _measures(row):
        reached = min(reached_of({hook: found[hook, size, row.buckets] for hook in needed}) for size in row.sizes)
        verdict = "holds" if reached >= target else "MISSED"
        result.append(Check(case_text(row), name, form.format(reached), form.format(target), verdict))
    return result


def layouts(rate, hooks):
    """The layouts that a whole run measures at this rate: nodes of one rank, and those of the rows of these hooks."""
    rows = [row for row in ROWS if row.rate == rate and row.hook in hooks]
    return list(dict.fromkeys([Layout(world, 1) for world in WORLDS] + [row.layout for row in rows]))


def evaluate(times_of, built, hooks):
    """All checks of the rows that were asked for, and the number of rows that were not. `times_of`: by (layout, rate) the
    entries as for `checks`; `hooks`: the names that were asked for, built or not."""
    result, left_out = [], 0
    for row in ROWS:
        asked = row.hook in hooks and (row.layout, row.rate) in times_of
        of_row = checks(row, times_of[row.layout, row.rate], built) if asked else None
        left_out += of_row is None
        result += of_row or []
    return result, left_out

"""The speeds that the hooks must reach on simulated networks, and whether measured ones do.

Of two lines below that name the same ratio, both must hold. Bytes allow int8 (int8_b128: 8.125 bits an element) at most
3.94 times the speed of fp32 and 1.97 times that of bf16, and int4 (int4_b32: 4.5 bits) 7.1 and 3.6 times.
"""
import dataclasses

MIB = 1 << 20
BUCKET = 25 * MIB
SMALL_BUCKETS = (64 << 10, 256 << 10, MIB)
RATES = {"1": 1e9, "10": 1e10, "open": None}  # Bits per second.
WORLDS = (2, 4, 8)
FP32, BF16 = "allreduce", "bf16_compress"

# What the shaper counts of a full packet: 1500 bytes of IP and 14 of the Ethernet header, which carry 1448 of payload
# after the headers of IP (20) and TCP (20, and 12 for timestamps). Preamble, checksum and gap (24 more on a real wire)
# are not counted, so they do not belong to this limit.
FRAMED = 1514 / 1448


@dataclasses.dataclass(frozen=True)
class Row:
    """Least speed-ups over fp32 and bf16, and the least share of the wire limit, of a hook in one case. With several
    sizes the worst one counts."""
    hook: str
    world: int
    rate: str
    buckets: int = 1
    sizes: tuple = (BUCKET,)
    fp32: float = None
    bf16: float = None
    wire: float = None


def _rows():
    for world, fp32, bf16, wire in ((2, 3.6, 1.9, .90), (4, 3.6, 1.9, .90), (8, 3.3, 1.8, .82)):
        yield Row("int8", world, "1", fp32=fp32, bf16=bf16, wire=wire)
    for world in (2, 4):
        yield Row("int8", world, "1", buckets=4, fp32=3.8, bf16=1.93, wire=.95)
    for world in WORLDS:
        yield Row("int8", world, "10", fp32=2.8, bf16=1.8)
    for world in (2, 4):
        yield Row("int8", world, "open", fp32=2.5, bf16=1.9)
    for world in WORLDS:
        for rate in RATES:
            yield Row("int8", world, rate, sizes=SMALL_BUCKETS, fp32=1, bf16=1)
    yield Row("int4", 4, "1", fp32=6, bf16=3.1, wire=.82)
    yield Row("int4", 4, "1", buckets=4, fp32=6.6, bf16=3.3, wire=.92)
    for hook in ("quantize_per_tensor", "quantize_per_channel"):
        yield Row(hook, 2, "open", fp32=1 / .65)


ROWS = tuple(_rows())


@dataclasses.dataclass(frozen=True)
class Check:
    case: str
    measure: str
    reached: str
    target: str
    verdict: str  # "holds", "MISSED", "not built"


def wire_seconds(payload_bytes, rate):
    """The least time in which a rank can send its payload, full packets with their headers, at `rate`."""
    return payload_bytes * FRAMED * 8 / RATES[rate]


def size_text(size):
    return f"{size / MIB:g} MiB" if size >= MIB else f"{size // 1024} KiB"


def rate_text(rate):
    return "open" if rate == "open" else f"{rate} Gbit/s"


def case_text(row):
    size = size_text(row.sizes[0]) if len(row.sizes) == 1 else f"{size_text(row.sizes[0])}..{size_text(row.sizes[-1])}"
    return f"{row.hook}, {rate_text(row.rate)}, W={row.world}, {row.buckets} x {size}"


def _measures(row):
    """(name, target, how it is printed, function of (the hook's times, fp32's, bf16's) that gives what was reached)."""
    if row.fp32:
        yield "x fp32", row.fp32, "{:.2f}", lambda hook, fp32, bf16: fp32["median_ms"] / hook["median_ms"]
    if row.bf16:
        yield "x bf16", row.bf16, "{:.2f}", lambda hook, fp32, bf16: bf16["median_ms"] / hook["median_ms"]
    if row.wire:
        yield "of the wire limit", row.wire, "{:.1%}", lambda hook, fp32, bf16: (
            1e3 * wire_seconds(hook["payload_bytes"], row.rate) / hook["median_ms"])


def checks(row, times, built):
    """The checks of a row. `times`: the entries of `hooks` of narrowcast-bench's JSON, for this world and rate; `built`:
    the names of the hooks that this build has. None if not all of the row's sizes were measured."""
    found = {(time["hook"], time["bucket_bytes"], time["buckets"]): time for time in times}
    needed = [FP32, BF16] + [row.hook] * (row.hook in built)
    if any((hook, size, row.buckets) not in found for hook in needed for size in row.sizes):
        return None
    if row.hook not in built:
        return [Check(case_text(row), name, "-", form.format(target), "not built")
                for name, target, form, _ in _measures(row)]
    result = []
    for name, target, form, reached_of in _measures(row):
        reached = min(reached_of(*(found[hook, size, row.buckets] for hook in (row.hook, FP32, BF16)))
                      for size in row.sizes)
        verdict = "holds" if reached >= target else "MISSED"
        result.append(Check(case_text(row), name, form.format(reached), form.format(target), verdict))
    return result


def evaluate(times_of, built, hooks):
    """All checks of the rows that were asked for, and the number of rows that were not. `times_of`: by (world, rate) the
    entries as for `checks`; `hooks`: the names that were asked for, built or not."""
    result, left_out = [], 0
    for row in ROWS:
        asked = row.hook in hooks and (row.world, row.rate) in times_of
        of_row = checks(row, times_of[row.world, row.rate], built) if asked else None
        left_out += of_row is None
        result += of_row or []
    return result, left_out

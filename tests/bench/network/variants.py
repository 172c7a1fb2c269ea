"""Methods to train with few bytes: their names, their flags of narrowcast-train, and tables of their results."""
import dataclasses
import json
import math

import program


@dataclasses.dataclass(frozen=True)
class Variant:
    """Each `round` consecutive steps exchange the same bytes."""
    name: str
    flags: tuple
    round: int = 1


def _hook(name, *flags):
    return (f"--hook={name}",) + flags


def _outer(every, optimizer, *flags):
    return (f"--sync_every={every}", f"--outer_optimizer={optimizer}") + flags


# As in DiLoCo (arXiv 2311.08105) and Streaming DiLoCo (arXiv 2501.18512).
_DILOCO = ("--outer_learning_rate=0.7", "--outer_momentum=0.9")
_STREAMING = ("--outer_learning_rate=0.4", "--outer_momentum=0.9", "--fragments=3", "--overlap_steps=2", "--outer_mix=0.5")
FORMATS = ("fp32", "int8_b128", "int4_b32")
# SparseLoCo (arXiv 2508.15706), with a rate that was among the best in _tried(). The decay of 0.95 shrinks a difference
# while it waits to be sent. docs/reference/local-steps.md has the rates that make up for it: 3.5 and 2.0.
SPARSE_FORMATS = ("top2_15", "top2_31")
_SPARSE = ("--outer_learning_rate=3",)


def _variants(plain_steps):
    """`plain_steps`: steps before PowerSGD compresses, and before the first outer step's ranks diverge."""
    for hook in ("none", "bf16_compress", "int8", "int4"):
        yield Variant(hook, _hook(hook))
    power = (f"--power_sgd_start={plain_steps}",)
    for rank in (1, 2, 4):
        yield Variant(f"power_sgd rank {rank}", _hook("power_sgd", f"--power_sgd_rank={rank}", *power))
    yield Variant("power_sgd rank 4 alternate", _hook("power_sgd", "--power_sgd_rank=4", "--power_sgd_alternate", *power))
    yield Variant("power_sgd rank 4 averaged memory",
                  _hook("power_sgd", "--power_sgd_rank=4", "--power_sgd_memory=averaged", *power))
    for wire in ("int8_b128", "int4_b32"):
        yield Variant(f"power_sgd rank 4, {wire}", _hook("power_sgd", "--power_sgd_rank=4", f"--power_sgd_wire={wire}", *power))
    warmup = (f"--outer_warmup={plain_steps}",)
    yield Variant("average every 10", _outer(10, "average", *warmup), 10)
    for every in (10, 30, 100):
        for wire in FORMATS:
            yield Variant(f"DiLoCo every {every}, {wire}",
                          _outer(every, "nesterov", f"--outer_format={wire}", *_DILOCO, *warmup), every)
    for wire in SPARSE_FORMATS:
        yield Variant(f"SparseLoCo every 30, {wire}", _outer(30, "sgd", f"--outer_format={wire}", *_SPARSE, *warmup), 30)
    yield Variant("streaming every 30, int4_b32",
                  _outer(30, "nesterov", "--outer_format=int4_b32", *_STREAMING, *warmup), 30)


def _tried(plain_steps):
    """DiLoCo with other outer rates and momenta, and SparseLoCo with other rates and decays: measured only if named."""
    for rate in (.3, .5, 1):
        for momentum in (.5, .8, .9):
            yield Variant(f"DiLoCo every 30, fp32, rate {rate:g}, momentum {momentum:g}",
                          _outer(30, "nesterov", f"--outer_learning_rate={rate:g}", f"--outer_momentum={momentum:g}",
                                 f"--outer_warmup={plain_steps}"), 30)
    for wire in SPARSE_FORMATS:
        for rate in (1, 3, 4, 6, 8):
            for decay in (.95, 1):
                yield Variant(f"SparseLoCo every 30, {wire}, rate {rate:g}, decay {decay:g}",
                              _outer(30, "sgd", f"--outer_format={wire}", f"--outer_learning_rate={rate:g}",
                                     f"--outer_error_decay={decay:g}", f"--outer_warmup={plain_steps}"), 30)


def variants(plain_steps, names=None):
    """The methods with these names, or by default all except those of _tried(). Raises program.WrongUse for an unknown
    name."""
    known = {variant.name: variant for variant in _variants(plain_steps)}
    if names:
        known |= {variant.name: variant for variant in _tried(plain_steps)}
    unknown = [name for name in names or [] if name not in known]
    if unknown:
        raise program.WrongUse(f"--variants: '{unknown[0]}' is not one of {'; '.join(known)}")
    return [known[name] for name in names or known]


def whole_rounds(ways, plain_steps, least):
    """The smallest number of steps that is at least `least` more than `plain_steps` and ends a whole round of each
    method."""
    length = math.lcm(*(way.round for way in ways))
    return plain_steps + length * max(1, math.ceil(least / length))


def _events(metrics, kind):
    return [event for event in map(json.loads, metrics.splitlines()) if event["event"] == kind]


def cost_of_steps(metrics, first, last):
    """Mean seconds and bytes of rank 0's payload of the steps after `first` up to `last`. (A median would ignore the
    exchanges where not all steps exchange.) With an outer optimizer only its payload counts: the hooks' payload stays
    between the ranks of a node. `metrics`: the text of metrics.jsonl with a line for each step."""
    at = {event["step"]: event for event in _events(metrics, "step")}
    if first not in at or last not in at:
        raise program.Failed(f"metrics.jsonl: lacks step {first} or {last}")
    payload = next(key for key in ("outer_payload_bytes_sent", "payload_bytes_sent") if key in at[last])
    return tuple((at[last][key] - at[first][key]) / (last - first) for key in ("seconds", payload))


def losses(metrics):
    """The validation losses by step, in order."""
    return [(event["step"], event["validation_loss"]) for event in _events(metrics, "evaluation")]


def loss_after(curve, steps):
    """The loss after `steps` steps, interpolated between the points of `curve` (from losses()); None before the
    first."""
    if not curve or steps < curve[0][0]:
        return None
    for (left, before), (right, after) in zip(curve, curve[1:]):
        if left <= steps <= right:
            return before + (after - before) * (steps - left) / (right - left)
    return curve[-1][1]


def _mean_loss(curves, steps):
    values = [loss_after(curve, steps) for curve in curves]
    return "-" if None in values else f"{sum(values) / len(values):.3f}"


def _cost_columns(costs, reference):
    return {"": ["s per step", f"x {reference}", "kB per step"]} | {
        name: [f"{seconds:.3f}", f"{costs[reference][0] / seconds:.1f}", f"{sent / 1e3:.1f}"]
        for name, (seconds, sent) in costs.items()}


def _loss_columns(costs, curves):
    steps = min(curve[-1][0] for of_seeds in curves.values() for curve in of_seeds)
    columns = {"": [f"loss, {steps} steps"]} | {name: [_mean_loss(of_way, steps)] for name, of_way in curves.items()}
    if costs:
        time = steps * min(seconds for seconds, _ in costs.values())
        columns[""].append(f"loss, {time:.0f} s")
        for name, (seconds, _) in costs.items():
            columns[name].append(_mean_loss(curves[name], min(steps, time / seconds)))
    return columns


def rows(costs, curves, reference):
    """A table as lists of words. `costs`: (seconds, bytes) of a step by name. `curves`: validation losses by name, one
    curve per seed, which are averaged. One of the two may be empty. Speeds are relative to `reference`. Losses are
    given after the number of steps that all have taken, and after the time that the fastest needed for them."""
    columns = [_cost_columns(costs, reference)] if costs else []
    columns += [_loss_columns(costs, curves)] if curves else []
    return [[name] + [word for part in columns for word in part[name]] for name in columns[0]]

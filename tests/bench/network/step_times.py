"""The times of optimizer steps, from the metrics of narrowcast-train with --log_every=1, and a table of them."""
import json
import statistics

import program
import targets

NONE, BF16, NOOP = "none", "bf16_compress", "noop"
AUTO = "auto"  # The hook, and the size of buckets, that narrowcast-train chooses by itself.
MOST_LONGER = .03  # A step with the chosen size of buckets than with the best of those that were tried.


def seconds_of_steps(metrics, steps, warmup):
    """Of each step of a training of `steps` ones, after the first `warmup` ones. `metrics`: the text of metrics.jsonl.
    Raises program.Failed if it has other steps."""
    events = [event for event in map(json.loads, metrics.splitlines()) if event["event"] == "step"]
    if [event["step"] for event in events] != list(range(1, steps + 1)):
        raise program.Failed(f"metrics.jsonl: has {len(events)} of {steps} steps")
    so_far = [0] + [event["seconds"] for event in events]
    return [later - earlier for earlier, later in zip(so_far, so_far[1:])][warmup:]


def rows(seconds):
    """A table as lists of words: for each hook the median of its steps' `seconds`, a list by its name, and how many times
    as fast as without a hook and as with bf16_compress that is."""
    medians = {hook: statistics.median(times) for hook, times in seconds.items()}
    table = [["hook", "steps", "s per step", f"x {NONE}", f"x {BF16}"]]
    for hook, median in medians.items():
        table.append([hook, str(len(seconds[hook])), f"{median:.3f}",
                      f"{medians[NONE] / median:.2f}", f"{medians[BF16] / median:.2f}"])
    return table


def best(seconds):
    """By hook the size of buckets with which the median of its steps is least, and that median, of `seconds` of steps by
    size and hook."""
    found = {}
    for cap, of_hooks in seconds.items():
        for hook, times in of_hooks.items():
            median = statistics.median(times)
            if hook not in found or median < found[hook][1]:
                found[hook] = (cap, median)
    return found


def checks_of_choice(seconds):
    """Of each hook that sends: whether a step with the chosen size takes at most as much longer than with the best of the
    others as the target allows. `seconds` as for rows_of_choice."""
    given = best({cap: of_hooks for cap, of_hooks in seconds.items() if cap != AUTO})
    for hook, times in seconds[AUTO].items():
        if hook != NOOP:
            more = statistics.median(times) / given[hook][1] - 1
            yield targets.Check(hook, "longer than the best size", f"{more:+.1%}", f"<= {MOST_LONGER:.0%}",
                                "holds" if more <= MOST_LONGER else "MISSED")


def noise_text(seconds):
    """By how much steps differ between sizes of buckets where nothing is sent, and so by chance."""
    if NOOP not in seconds[AUTO]:
        return f"the run's noise is not known: {NOOP} was not measured"
    medians = [statistics.median(of_cap[NOOP]) for of_cap in seconds.values()]
    return f"the run's noise: with {NOOP}, which sends nothing, sizes differ by {max(medians) / min(medians) - 1:.1%}"


def rows_of_choice(seconds):
    """A table as lists of words, from `seconds` of steps by size of buckets and hook: for each hook the best of the sizes
    that are given, the median of its steps, that with the chosen size, and how much more the latter is."""
    table = [["hook", "best MiB", "s per step", "chosen", "more"]]
    given = best({cap: of_hooks for cap, of_hooks in seconds.items() if cap != AUTO})
    for hook, times in seconds[AUTO].items():
        cap, least = given[hook]
        chosen = statistics.median(times)
        table.append([hook, cap, f"{least:.3f}", f"{chosen:.3f}", f"{chosen / least - 1:+.1%}"])
    return table

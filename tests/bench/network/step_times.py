"""The times of optimizer steps, from the metrics of narrowcast-train and tables of them."""
import json
import statistics

import program
import targets

NONE, BF16, NOOP = "none", "bf16_compress", "noop"
AUTO = "auto"  # The hook and the bucket size that narrowcast-train chooses by itself.
MOST_LONGER = .03  # How much longer a step with the chosen bucket size may be than with the best of the given sizes.


def seconds_of_steps(metrics, steps, warmup, every=1):
    """The seconds of each step after the first `warmup` ones, in a training of `steps` steps; with `every`, the means of so
    many steps, by which steps and warmup can be divided. `metrics`: the text of metrics.jsonl. Raises program.Failed if it
    has other steps."""
    events = [event for event in map(json.loads, metrics.splitlines()) if event["event"] == "step"]
    if [event["step"] for event in events] != list(range(every, steps + 1, every)):
        raise program.Failed(f"metrics.jsonl: has {len(events)} of {steps // every} steps")
    so_far = [0] + [event["seconds"] for event in events]
    return [(later - earlier) / every for earlier, later in zip(so_far, so_far[1:])][warmup // every:]


def rows(seconds):
    """A table as lists of words: for each hook the median of its steps' `seconds` (a list by hook), and the speed
    relative to no hook and to bf16_compress."""
    medians = {hook: statistics.median(times) for hook, times in seconds.items()}
    table = [["hook", "steps", "s per step", f"x {NONE}", f"x {BF16}"]]
    for hook, median in medians.items():
        table.append([hook, str(len(seconds[hook])), f"{median:.3f}",
                      f"{medians[NONE] / median:.2f}", f"{medians[BF16] / median:.2f}"])
    return table


def best(seconds):
    """For each hook, the bucket size with the smallest median step time, and that median. `seconds`: times by size and
    hook."""
    found = {}
    for cap, of_hooks in seconds.items():
        for hook, times in of_hooks.items():
            median = statistics.median(times)
            if hook not in found or median < found[hook][1]:
                found[hook] = (cap, median)
    return found


def checks_of_choice(seconds):
    """For each hook that sends: whether a step with the chosen size is at most MOST_LONGER longer than with the best of
    the other sizes. `seconds` as for rows_of_choice."""
    given = best({cap: of_hooks for cap, of_hooks in seconds.items() if cap != AUTO})
    for hook, times in seconds[AUTO].items():
        if hook != NOOP:
            more = statistics.median(times) / given[hook][1] - 1
            yield targets.Check(hook, "longer than the best size", f"{more:+.1%}", f"<= {MOST_LONGER:.0%}",
                                "holds" if more <= MOST_LONGER else "MISSED")


def noise_text(seconds):
    """The difference between bucket sizes where nothing is sent: the measurement noise."""
    if NOOP not in seconds[AUTO]:
        return f"the run's noise is not known: {NOOP} was not measured"
    medians = [statistics.median(of_cap[NOOP]) for of_cap in seconds.values()]
    return f"the run's noise: with {NOOP}, which sends nothing, sizes differ by {max(medians) / min(medians) - 1:.1%}"


def rows_of_choice(seconds):
    """A table as lists of words. For each hook: the best of the given sizes, its median step time, the median step time
    with the chosen size, and their relative difference. `seconds`: times by bucket size and hook."""
    table = [["hook", "best MiB", "s per step", "chosen", "more"]]
    given = best({cap: of_hooks for cap, of_hooks in seconds.items() if cap != AUTO})
    for hook, times in seconds[AUTO].items():
        cap, least = given[hook]
        chosen = statistics.median(times)
        table.append([hook, cap, f"{least:.3f}", f"{chosen:.3f}", f"{chosen / least - 1:+.1%}"])
    return table

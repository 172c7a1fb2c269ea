"""What the programs of this folder print, and the order of their faults."""
import statistics
import sys


def shuffled(kinds, count, chance):
    """`count` names of faults, each kind equally often."""
    names = []
    while len(names) < count:
        once = list(kinds)
        chance.shuffle(once)
        names += once
    return names[:count]


def nearly_all(seconds):
    """The time within which 95% are done."""
    ordered = sorted(seconds)
    return ordered[min(len(ordered) - 1, int(0.95 * len(ordered)))]


def print_times(what, seconds):
    if not seconds:
        print(f"{what:<26} none")
        return
    print(f"{what:<26} median {statistics.median(seconds):6.2f} s, 95% within {nearly_all(seconds):6.2f} s, "
          f"all within {max(seconds):6.2f} s, of {len(seconds)}")


def failed(problem, training):
    """Prints why a run failed. Returns its exit code."""
    print(f"FAILED: {problem}\nthe last lines on standard error:", file=sys.stderr)
    for _, line in training.said()[-40:]:
        print("    " + line, file=sys.stderr)
    return 1

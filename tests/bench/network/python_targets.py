"""The targets of hooks and the operator from Python, relative to PyTorch's hooks and to hooks in C++, and tables of times."""
from networks import Layout, rate_text
from targets import ALLREDUCE, BF16, BUCKET, Check, size_text

OF_PYTORCH = (ALLREDUCE, BF16)  # Names of PyTorch's hooks.
LEAST_OF_CPP = 1 / 1.05         # Speed of a hook or the operator from Python, relative to the hook in C++.
HOOK_OF_FORMAT = {"int8_b128": "int8"}  # The hook that sends the bytes of the operator, by the operator's format.
# Speed of int8 relative to PyTorch's bf16_compress, by network.
LEAST_OF_BF16 = {(Layout(4, 1), "1"): 1.9, (Layout(2, 4), "1"): 2.3}


def in_python(hook):
    """The name of a hook of narrowcast in Python."""
    return f"narrowcast.{hook}"


def in_cpp(hook):
    return f"C++ {hook}"


def operator(wire_format):
    """The name of the operator in a format."""
    return f"operator.{wire_format}"


def _cpp_of(way, medians):
    """The name of the hook in C++ that sends the same bytes, if it was measured."""
    twins = {operator(each): in_cpp(hook) for each, hook in HOOK_OF_FORMAT.items()}
    twin = twins.get(way) or (in_cpp(way.removeprefix(in_python(""))) if way.startswith(in_python("")) else None)
    return twin if twin in medians else None


def rows(medians):
    """A table as lists of words. `medians`: milliseconds by way."""
    table = [["way", "ms", f"x {ALLREDUCE}", f"x {BF16}", "x C++"]]
    for way, median in medians.items():
        twin = _cpp_of(way, medians)
        table.append([way, f"{median:.1f}"] + [f"{medians[other] / median:.2f}" for other in OF_PYTORCH] +
                     [f"{medians[twin] / median:.2f}" if twin else ""])
    return table


def _check(way, measure, reached, least, case):
    return Check(f"{way}, {case}", measure, f"{reached:.2f}", f">= {least:.2f}", "holds" if reached >= least else "MISSED")


def checks(medians, layout, rate):
    """The checks of one network. `medians`: milliseconds by way."""
    case = f"{rate_text(rate)}, {layout}, {size_text(BUCKET)}"
    found = [_check(way, "x the hook in C++", medians[_cpp_of(way, medians)] / median, LEAST_OF_CPP, case)
             for way, median in medians.items() if _cpp_of(way, medians)]
    int8 = in_python("int8")
    if int8 in medians and (layout, rate) in LEAST_OF_BF16:
        found.append(_check(int8, f"x PyTorch's {BF16}", medians[BF16] / medians[int8], LEAST_OF_BF16[layout, rate], case))
    return found

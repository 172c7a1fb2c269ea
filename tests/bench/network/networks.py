"""The simulated networks that a program measures: how many nodes, ranks on each of them, and the rate of their
links."""
import argparse
import pathlib
import typing

RATES = {"0.1": 1e8, "1": 1e9, "10": 1e10, "open": None}  # Each node's egress, in bits per second.
MOST_RANKS = 64


class Layout(typing.NamedTuple):
    """`nodes` hosts with `ranks_per_node` ranks each. The ranks of a host share its interface and its rate."""
    nodes: int
    ranks_per_node: int

    @property
    def ranks(self):
        return self.nodes * self.ranks_per_node

    def __str__(self):
        return f"{_count(self.nodes, 'node')} of {_count(self.ranks_per_node, 'rank')}"


def _count(number, noun):
    return f"{number} {noun}" if number == 1 else f"{number} {noun}s"


def rate_text(rate):
    return "open" if rate == "open" else "100 Mbit/s" if rate == "0.1" else f"{rate} Gbit/s"


def tc_rate(rate):
    """The rate in the notation of network_namespace.Network."""
    return None if rate == "open" else rate + "gbit"


def words(text):
    """The distinct words of a comma-separated list."""
    return list(dict.fromkeys(text.split(",")))


def counts(text):
    """The distinct positive whole numbers of a comma-separated list."""
    for word in text.split(","):
        if not word.isdecimal() or int(word) == 0:
            raise argparse.ArgumentTypeError(f"'{word}' is not a positive whole number")
    return list(dict.fromkeys(map(int, text.split(","))))


def count(text):
    """A positive whole number."""
    if "," in text:
        raise argparse.ArgumentTypeError(f"'{text}' is not a positive whole number")
    return counts(text)[0]


def count_or_auto(text):
    """A positive whole number, or auto."""
    return text if text == "auto" else count(text)


def output_file(text):
    """The path of a file to write after all measurements; a path that cannot be written is an error at once."""
    path = pathlib.Path(text)
    if not text or path.is_dir() or not path.parent.is_dir():
        raise argparse.ArgumentTypeError(f"'{text}' cannot be written")
    return path


def _rates(text):
    for rate in words(text):
        if rate not in RATES:
            raise argparse.ArgumentTypeError(f"'{rate}' is not one of {', '.join(RATES)}")
    return words(text)


def add_flags(parser, layouts, rates):
    """Adds --nodes, --ranks_per_node, --world and --rate. `layouts` describes the default layouts; `rates` is the list
    of default rates."""
    parser.add_argument("--nodes", type=counts, metavar="N,...", help=f"numbers of nodes (default: {layouts})")
    parser.add_argument("--ranks_per_node", type=counts, metavar="G,...",
                        help="with --nodes: numbers of ranks on each of them; every combination is measured (default: 1)")
    parser.add_argument("--world", type=counts, metavar="W,...", help="short for --nodes=W,... --ranks_per_node=1")
    parser.add_argument("--rate", type=_rates, default=list(rates), metavar="R,...",
                        help=f"of each node's egress: 0.1, 1, 10 (Gbit/s) or open (default: {','.join(rates)})")
    parser.add_argument("--delay_ms", type=_milliseconds, default=0, metavar="MS",
                        help="time that packets take from one node to another (default: 0)")
    parser.add_argument("--loss_percent", type=_percent, default=0, metavar="P",
                        help="share of packets between nodes that are lost (default: 0)")


def _milliseconds(text):
    try:
        value = float(text)
    except ValueError:
        value = -1
    if not 0 <= value < 10_000:
        raise argparse.ArgumentTypeError(f"'{text}' is not a number from 0 to below 10000")
    return value


def _percent(text):
    try:
        value = float(text)
    except ValueError:
        value = -1
    if not 0 <= value < 100:
        raise argparse.ArgumentTypeError(f"'{text}' is not a number from 0 to below 100")
    return value


def has_wires(arguments):
    """Whether packets are delayed or lost. No target is of such a network."""
    return bool(arguments.delay_ms or arguments.loss_percent)


def link_text(rate, arguments):
    """The rate, and the delay and the loss of arguments of add_flags."""
    return (rate_text(rate) + (f", {arguments.delay_ms:g} ms of delay" if arguments.delay_ms else "")
            + (f", {arguments.loss_percent:g}% lost" if arguments.loss_percent else ""))


def named_layouts(parser, arguments):
    """The layouts that flags name, or None if no flag names any. Ends the program if flags contradict each other."""
    if arguments.world:
        for flag in ("nodes", "ranks_per_node"):
            if getattr(arguments, flag):
                parser.error(f"--world: cannot be given with --{flag}; --world=W means --nodes=W --ranks_per_node=1")
    if arguments.ranks_per_node and not arguments.nodes:
        parser.error("--ranks_per_node: needs --nodes")
    nodes, flag = (arguments.world, "world") if arguments.world else (arguments.nodes, "nodes")
    if not nodes:
        return None
    layouts = [Layout(count, ranks) for count in nodes for ranks in arguments.ranks_per_node or [1]]
    for layout in layouts:
        if not 2 <= layout.ranks <= MOST_RANKS:
            parser.error(f"--{flag}: {layout}: there must be 2 to {MOST_RANKS} ranks in all")
    return layouts

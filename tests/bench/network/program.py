"""Start and end of the programs in this folder."""
import contextlib
import math
import pathlib
import signal
import sys

import networks

ROOT = pathlib.Path(__file__).resolve().parents[3]
sys.path.append(str(ROOT / "tests/support/network"))
import network_namespace  # noqa: E402 -- found by the line above


class WrongUse(Exception):
    """An error that the caller must correct; its text describes it."""


class Failed(Exception):
    """A program failed or printed something unexpected; its text describes it."""


def add_bin_flag(parser, program):
    parser.add_argument("--bin", type=pathlib.Path, default=ROOT / "build/release/bin", metavar="DIR",
                        help=f"folder of {program} (default: build/release/bin)")


@contextlib.contextmanager
def made_network(arguments, layout, rate):
    """The hosts of a layout, for arguments of networks.add_flags and add_bin_flag."""
    wire = arguments.bin / "narrowcast_test_wire" if networks.has_wires(arguments) else None
    if wire and not wire.exists():
        flag = "delay_ms" if arguments.delay_ms else "loss_percent"
        raise WrongUse(f"--{flag}: {wire.parent} has no {wire.name}; build it, or name its folder with --bin")
    with network_namespace.Network(layout.nodes, networks.tc_rate(rate), layout.ranks_per_node, wire) as network:
        for node in range(layout.nodes if wire else 0):
            # Packets pass two wires.
            network.set_wire(node, arguments.delay_ms / 2, 1 - math.sqrt(1 - arguments.loss_percent / 100))
        yield network


def _missing(program):
    problem = network_namespace.missing_requirement()
    if not problem and not program.exists():
        problem = f"{program.parent} has no {program.name}; build it, or name its folder with --bin"
    return problem


def exit_code(name, program, run):
    """The result of run(); 2 after WrongUse, or if this machine or user lacks something, e.g. `program`; 3 if a rank
    failed or printed something unexpected. Errors are printed after `name`. A signal unwinds run(), which removes its
    networks."""
    for number in (signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, lambda received, _: sys.exit(128 + received))
    try:
        problem = _missing(program)
        if problem:
            raise WrongUse(problem)
        return run()
    except (WrongUse, Failed, network_namespace.RankFailed) as error:
        print(f"{name}: {error}", file=sys.stderr)
        return 2 if isinstance(error, WrongUse) else 3
    except KeyboardInterrupt:
        return 128 + signal.SIGINT

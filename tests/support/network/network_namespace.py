"""Hosts that are network namespaces on one bridge, to measure networks on one machine. Linux only; needs root, iproute2 and util-linux.

    with Network(hosts=2, rate="1gbit", ranks_per_host=4) as network:
        outputs = network.run_ranks(["narrowcast-bench", "--nokernels"])
        print(network.counters(0)["tx_bytes"])

Everything is taken down when the block ends, also by an exception or Ctrl-C. Namespaces are named
narrowcast-PID-...; those of a process that was killed before it could clean up go with the next Network.
"""
import concurrent.futures
import contextlib
import json
import os
import re
import shutil
import signal
import subprocess

# How each host's egress is shaped, beside the rate. The burst holds three of the largest packets that TCP hands down.
SHAPER = ["burst", "256kb", "latency", "100ms"]
INTERFACE = "eth0"
FIRST_PORT = 29500
# A rank that fails is named after all have ended; those that have not by then are stopped.
SECONDS_TO_END = 5
PREFIX = "narrowcast-"


class RankFailed(Exception):
    """A rank ended with another exit code than 0."""


def missing_requirement():
    """What this machine or user lacks to make namespaces, as a sentence; empty if nothing."""
    if os.geteuid() != 0:
        return "needs root: it makes network namespaces"
    lacking = [tool for tool in ("ip", "tc", "setpriv") if shutil.which(tool) is None]
    return f"needs the command '{lacking[0]}' (Debian: apt-get install iproute2 util-linux)" if lacking else ""


def _output(command):
    done = subprocess.run(command, stdin=subprocess.DEVNULL, capture_output=True, text=True)
    if done.returncode != 0:
        raise RuntimeError(f"{' '.join(command)}: {done.stderr.strip() or done.returncode}")
    return done.stdout


def _namespaces():
    return [line.split()[0] for line in _output(["ip", "netns", "list"]).splitlines() if line.startswith(PREFIX)]


def _remove_leftovers():
    for name in _namespaces():
        pid = re.match(PREFIX + r"(\d+)-", name)
        if pid and not os.path.exists(f"/proc/{pid[1]}"):
            subprocess.run(["ip", "netns", "delete", name], stderr=subprocess.DEVNULL)


@contextlib.contextmanager
def _uninterrupted():
    """Lets Ctrl-C wait until the block is done; it counts afterwards."""
    received = []
    old = signal.signal(signal.SIGINT, lambda *_: received.append(True))
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, old)
    if received:
        raise KeyboardInterrupt


class Network:
    """`hosts` hosts, host h at address(h); each one's egress shaped to `rate` (as tc has it, e.g. "1gbit"), or not.
    `ranks_per_host` ranks share a host and its interface; what they send each other stays in the host, unshaped.
    With `wire`, the program narrowcast_test_wire, each host is on a wire that set_wire() makes long, lossy or dead."""

    def __init__(self, hosts, rate=None, ranks_per_host=1, wire=None):
        self.hosts = hosts
        self.rate = rate
        self.ranks_per_host = ranks_per_host
        self._wire = wire
        self._wires = []
        self._prefix = f"{PREFIX}{os.getpid()}-"
        self._switch = self._prefix + "switch"
        self._port = FIRST_PORT

    def __enter__(self):
        _remove_leftovers()
        try:
            self._make_switch()
            for host in range(self.hosts):
                self._make_host(host)
        except BaseException:
            self._take_down()
            raise
        return self

    def __exit__(self, *_):
        self._take_down()

    def address(self, host):
        return f"10.77.0.{host + 1}"

    def command(self, host, command):
        """`command`, a list, as it runs on `host`."""
        return ["ip", "netns", "exec", self._name(host)] + command

    def counters(self, host):
        """What the host's interface has sent: tx_bytes, tx_packets (a packet that TCP leaves to the interface to
        cut up counts once, headers and all), and with a shaper shaped_bytes, for which headers count as often as the
        wire would see them."""
        folder = f"/sys/class/net/{INTERFACE}/statistics/"
        files = ["tx_bytes", "tx_packets"]
        values = _output(self.command(host, ["cat"] + [folder + file for file in files])).split()
        counters = dict(zip(files, map(int, values)))
        if self.rate:
            queue = json.loads(_output(["tc", "-n", self._name(host), "-s", "-j", "qdisc", "show", "dev", INTERFACE]))
            counters["shaped_bytes"] = queue[0]["bytes"]
        return counters

    def set_wire(self, host, delay_ms=0, loss=0, loss_to_host=None):
        """From now on what the host sends and what is sent to it arrives `delay_ms` later, but for a share `loss` of the
        packets (1: the wire is cut). Of those that are sent to it a share `loss_to_host`, if that is given."""
        back = loss if loss_to_host is None else loss_to_host
        self._wires[host].stdin.write(f"{round(1000 * delay_ms)} {loss} {back}\n")
        self._wires[host].stdin.flush()

    def environment(self, rank):
        """torchrun's variables, for hosts that are its nodes: the first ranks are those of host 0, and so on."""
        host, local_rank = divmod(rank, self.ranks_per_host)
        inherited = {name: value for name, value in os.environ.items() if not name.startswith("TORCHELASTIC_")}
        return inherited | {
            "RANK": str(rank), "WORLD_SIZE": str(self._ranks()),
            "LOCAL_RANK": str(local_rank), "LOCAL_WORLD_SIZE": str(self.ranks_per_host),
            "GROUP_RANK": str(host), "GROUP_WORLD_SIZE": str(self.hosts),
            "MASTER_ADDR": self.address(0), "MASTER_PORT": str(self._port), "GLOO_SOCKET_IFNAME": INTERFACE,
            "OMP_NUM_THREADS": "1",
        }

    def run_ranks(self, command, limit_seconds=3600):
        """Runs `command` as rank 0, 1, ..., as many on each host as share it, and returns their standard outputs. Raises
        RankFailed with the standard errors of the ranks that failed, as the first to end may be one that only lost another;
        no process outlives the call."""
        self._port += 1  # The last one may be waiting for late packets.
        with contextlib.ExitStack() as stack, concurrent.futures.ThreadPoolExecutor(self._ranks()) as pool:
            ranks = [stack.enter_context(self._start(rank, command)) for rank in range(self._ranks())]
            stack.callback(_kill, ranks)
            ends = [pool.submit(_end_of, rank, process) for rank, process in enumerate(ranks)]
            _, running = concurrent.futures.wait(
                ends, timeout=limit_seconds, return_when=concurrent.futures.FIRST_EXCEPTION)
            concurrent.futures.wait(running, timeout=SECONDS_TO_END)
            failed = [str(end.exception()) for end in ends if end.done() and end.exception()]
            _kill(ranks)
            if failed:
                raise RankFailed("\n".join(failed))
            if running:
                raise RankFailed(f"not done within {limit_seconds} s: {' '.join(command)}")
            return [end.result() for end in ends]

    def _ranks(self):
        return self.hosts * self.ranks_per_host

    def _name(self, host):
        return self._prefix + str(host)

    def _start(self, rank, command):
        # A rank must not outlive this process, however that ends.
        command = self.command(rank // self.ranks_per_host, ["setpriv", "--pdeathsig", "KILL"] + command)
        return subprocess.Popen(command, env=self.environment(rank), stdin=subprocess.DEVNULL,
                                stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)

    def _make_switch(self):
        _output(["ip", "netns", "add", self._switch])
        # A switch that learns who listens to which multicasts joins a group itself, and says so to all hosts.
        self._ip(self._switch, "link add name bridge type bridge mcast_snooping 0")
        self._ip(self._switch, "link set dev bridge up")

    def _make_host(self, host):
        name = self._name(host)
        _output(["ip", "netns", "add", name])
        if self._wire:
            self._ip(self._switch, f"link add name line{host} type veth peer name {INTERFACE} netns {name}")
            self._ip(self._switch, f"link add name port{host} type veth peer name far{host}")
        else:
            self._ip(self._switch, f"link add name port{host} type veth peer name {INTERFACE} netns {name}")
        self._ip(self._switch, f"link set dev port{host} master bridge up")
        self._ip(name, f"link set dev {INTERFACE} addrgenmode none")  # No IPv6, whose own packets would be counted.
        self._ip(name, f"address add {self.address(host)}/24 dev {INTERFACE}")
        self._ip(name, f"link set dev {INTERFACE} up")
        self._ip(name, "link set dev lo up")
        if self.rate:
            _output(["tc", "-n", name, "qdisc", "add", "dev", INTERFACE, "root", "tbf", "rate", self.rate] + SHAPER)
        if self._wire:
            self._start_wire(f"line{host}", f"far{host}")

    def _start_wire(self, *ends):
        for end in ends:
            self._ip(self._switch, f"link set dev {end} addrgenmode none up")
        wire = subprocess.Popen(["ip", "netns", "exec", self._switch, str(self._wire), *ends], text=True,
                                stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE)
        self._wires.append(wire)
        if wire.stdout.readline() != "ready\n":
            raise RuntimeError(f"{self._wire}: {wire.stderr.read().strip()}")

    def _ip(self, namespace, words):
        _output(["ip", "-n", namespace] + words.split())

    def _take_down(self):
        with _uninterrupted():
            for wire in self._wires:
                wire.communicate()  # The end of its input is its own.
            for name in _namespaces():
                if name.startswith(self._prefix):
                    subprocess.run(["ip", "netns", "delete", name], stderr=subprocess.DEVNULL)


def _end_of(rank, process):
    output, errors = process.communicate()
    if process.returncode != 0:
        raise RankFailed(f"rank {rank} ended with code {process.returncode}: {errors.strip()}")
    return output


def _kill(processes):
    for process in processes:
        process.kill()

"""Hosts that are network namespaces on one bridge, to measure networks on one machine.

Linux only; needs root, iproute2 and util-linux.

    with Network(hosts=2, rate="1gbit", ranks_per_host=4) as network:
        outputs = network.run_ranks(["narrowcast-bench", "--nokernels"])
        print(network.counters(0)["tx_bytes"])

Everything is removed when the block ends, also after an exception or Ctrl-C. Namespaces are named narrowcast-PID-...;
the namespaces of a killed process are removed by the next Network.
"""
import concurrent.futures
import contextlib
import json
import os
import re
import shutil
import signal
import subprocess

# Shapes each host's egress, besides the rate. The burst holds three of the largest packets that TCP passes on.
SHAPER = ["burst", "256kb", "latency", "100ms"]
INTERFACE = "eth0"
FIRST_PORT = 29500
# Seconds from the first failure of a rank until the remaining ranks are stopped. Then all failed ranks are reported.
SECONDS_TO_END = 5
PREFIX = "narrowcast-"


class RankFailed(Exception):
    """A rank ended with an exit code other than 0."""


def missing_requirement():
    """What this machine or user lacks to make namespaces, as a sentence; empty if nothing is missing."""
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
    """Defers Ctrl-C until the block is done."""
    received = []
    old = signal.signal(signal.SIGINT, lambda *_: received.append(True))
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, old)
    if received:
        raise KeyboardInterrupt


class Network:
    """`hosts` hosts, host h at address(h). Each host's egress is shaped to `rate` (in tc's notation, e.g. "1gbit") or
    unlimited. `ranks_per_host` ranks share a host and its interface; traffic between them stays in the host, unshaped.
    With `wire`, the path of narrowcast_test_wire, each host is on a wire, which set_wire() can delay, make lossy or
    cut."""

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
        """The command line, a list, that runs `command` on `host`."""
        return ["ip", "netns", "exec", self._name(host)] + command

    def counters(self, host):
        """Counters of the host's interface: tx_bytes, tx_packets, and with a shaper shaped_bytes. A packet that TCP
        leaves to the interface to segment counts once in tx_bytes and tx_packets, with one header. shaped_bytes counts
        the headers of every segment."""
        folder = f"/sys/class/net/{INTERFACE}/statistics/"
        files = ["tx_bytes", "tx_packets"]
        values = _output(self.command(host, ["cat"] + [folder + file for file in files])).split()
        counters = dict(zip(files, map(int, values)))
        if self.rate:
            queue = json.loads(_output(["tc", "-n", self._name(host), "-s", "-j", "qdisc", "show", "dev", INTERFACE]))
            counters["shaped_bytes"] = queue[0]["bytes"]
        return counters

    def set_wire(self, host, delay_ms=0, loss=0, loss_to_host=None):
        """From now on, packets that the host sends or receives arrive `delay_ms` later, and a share `loss` of them is
        lost (1 cuts the wire). If `loss_to_host` is given, it is the share for packets to the host."""
        back = loss if loss_to_host is None else loss_to_host
        self._wires[host].stdin.write(f"{round(1000 * delay_ms)} {loss} {back}\n")
        self._wires[host].stdin.flush()

    def environment(self, rank):
        """torchrun's variables, with the hosts as its nodes: the first ranks are on host 0, and so on."""
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
        """Runs `command` as rank 0, 1, ..., ranks_per_host ranks on each host, and returns their standard outputs.
        Raises RankFailed with the standard errors of all failed ranks: the first to end may only have lost its
        connection to another one. No process outlives the call."""
        self._port += 1  # The last port may be waiting for late packets.
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
        # A rank must not outlive this process, however it ends.
        command = self.command(rank // self.ranks_per_host, ["setpriv", "--pdeathsig", "KILL"] + command)
        return subprocess.Popen(command, env=self.environment(rank), stdin=subprocess.DEVNULL,
                                stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)

    def _make_switch(self):
        _output(["ip", "netns", "add", self._switch])
        # With snooping, the bridge itself joins multicast groups and sends packets about it to all hosts.
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
        self._ip(name, f"link set dev {INTERFACE} addrgenmode none")  # No IPv6: its own packets would be counted.
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
                wire.communicate()  # The wire ends at the end of its input.
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

"""What may happen to a training: each fault hits something, and says what."""
import os
import pathlib
import shutil
import signal
import subprocess
import sys
import time

from training import wait_until

sys.path.append(str(pathlib.Path(__file__).resolve().parents[1] / "support/network"))
import network_namespace  # noqa: E402 -- found by the line above

# A rank that hangs, or a link that is gone, is noticed after so long.
TIMEOUT_SECONDS = 3
# For how long a network is gone: a moment, or until all must have noticed.
_CUTS = (0.3, TIMEOUT_SECONDS + 1)
# From a fault to the next checkpoint, at most.
LIMIT_SECONDS = 60


def _hit(training, random, number):
    """Sends a signal to a rank that lives; says which."""
    def try_one():
        workers = training.workers()
        if not workers:
            return None
        rank = random.choice(sorted(workers))
        try:
            os.kill(workers[rank], number)
        except ProcessLookupError:
            return None
        return f"rank {rank}"

    return wait_until(try_one, LIMIT_SECONDS, "a rank runs")


def kill_a_rank(training, random):
    return _hit(training, random, signal.SIGKILL)


def crash_a_rank(training, random):
    return _hit(training, random, signal.SIGSEGV)


def hang_a_rank(training, random):
    return _hit(training, random, signal.SIGSTOP)


def kill_a_launcher(training, random):
    """Returns when none of its ranks lives any more."""
    host = random.randrange(len(training.launchers))
    launcher = training.launchers[host]
    orphans = set(training.workers_of(launcher))
    launcher.kill()
    wait_until(lambda: orphans.isdisjoint(training.workers().values()), LIMIT_SECONDS, "no rank outlives its launcher")
    return f"the launcher of host {host}"


_OF_PROCESSES = {"SIGKILL": kill_a_rank, "segfault": crash_a_rank, "hang": hang_a_rank, "launcher killed": kill_a_launcher}


class NoLink:
    """One host whose network cannot be touched."""
    kinds = _OF_PROCESSES
    may_pass = ()

    def __init__(self, ranks):
        self._ranks = ranks

    def __enter__(self):
        return self

    def __exit__(self, *_):
        pass

    def hosts(self):
        return [([], [f"--nproc_per_node={self._ranks}"])]


def can_drop_links():
    return os.geteuid() == 0 and shutil.which("ip") is not None


class Link(NoLink):
    """One host, whose network is a namespace with nothing but the loopback interface."""

    may_pass = ("link dropped",)

    def __init__(self, ranks):
        super().__init__(ranks)
        self.kinds = {**_OF_PROCESSES, "link dropped": self.drop}
        self.name = f"narrowcast-{os.getpid()}-chaos"

    def __enter__(self):
        subprocess.run(["ip", "netns", "add", self.name], check=True)
        self.set("up")
        return self

    def __exit__(self, *_):
        subprocess.run(["ip", "netns", "delete", self.name], check=False)

    def set(self, state):
        subprocess.run(["ip", "-n", self.name, "link", "set", "lo", state], check=True)

    def hosts(self):
        return [(["ip", "netns", "exec", self.name], launcher_flags) for _, launcher_flags in super().hosts()]

    def drop(self, training, random):
        """Down until the ranks must have noticed, or a moment only: then the connections survive."""
        seconds = random.choice(_CUTS)
        self.set("down")
        time.sleep(seconds)
        self.set("up")
        return f"the link for {seconds} s"


class Wires:
    """Hosts with a launcher and `ranks` / `count` ranks each, joined by wires that can be cut, lossy and long."""
    may_pass = ("wire cut", "packets lost", "wire long")

    def __init__(self, count, ranks, wire):
        self.kinds = {**_OF_PROCESSES, "wire cut": self.cut, "packets lost": self.lose, "wire long": self.delay}
        self._ranks_per_host = ranks // count
        self._network = network_namespace.Network(count, ranks_per_host=self._ranks_per_host, wire=wire)

    def __enter__(self):
        self._network.__enter__()
        return self

    def __exit__(self, *exception):
        self._network.__exit__(*exception)

    def hosts(self):
        # As many nodes as there are, always: fewer would train to other bits.
        flags = [f"--nnodes={self._network.hosts}:{self._network.hosts}", f"--nproc_per_node={self._ranks_per_host}",
                 "--rdzv_backend=c10d", f"--rdzv_endpoint={self._network.address(0)}",
                 f"--rdzv_conf=keep_alive_interval=0.2,keep_alive_max_attempt=10,heartbeat_timeout={TIMEOUT_SECONDS}"]
        return [(self._network.command(host, ["env", f"GLOO_SOCKET_IFNAME={network_namespace.INTERFACE}"]), flags)
                for host in range(self._network.hosts)]

    def cut(self, training, random):
        """Until launchers and ranks must have noticed, or a moment only: then the connections survive."""
        return self._for_a_while(random, random.choice(_CUTS), "cut", loss=1)

    def lose(self, training, random):
        return self._for_a_while(random, 1, "lossy", loss=0.05)

    def delay(self, training, random):
        return self._for_a_while(random, 1, "long", delay_ms=100)

    def _for_a_while(self, random, seconds, how, **quality):
        host = random.randrange(self._network.hosts)
        self._network.set_wire(host, **quality)
        time.sleep(seconds)
        self._network.set_wire(host)
        return f"host {host}: {how} for {seconds} s"

"""The faults of a training. Each function hits something and returns a description of it."""
import os
import pathlib
import shutil
import signal
import struct
import subprocess
import sys
import time

from training import Stuck, living, wait_until

sys.path.append(str(pathlib.Path(__file__).resolve().parents[1] / "support/network"))
import network_namespace  # noqa: E402 -- found by the line above

# Time until a hung rank or a lost link is noticed.
TIMEOUT_SECONDS = 3
# How long a network is down: a moment, or until all must have noticed.
_CUTS = (0.3, TIMEOUT_SECONDS + 1)
# The maximum time from a fault to the next checkpoint.
LIMIT_SECONDS = 60


def _hit(training, random, number):
    """Sends a signal to a living rank. Returns which one."""
    def try_one():
        training.start_lost()
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


def kill_launcher(training, host):
    """Returns once none of its ranks lives any more."""
    launcher = training.launchers[host]
    orphans = training.workers_of(launcher)
    launcher.kill()
    wait_until(lambda: not living(orphans), LIMIT_SECONDS, "no rank outlives its launcher")
    return f"the launcher of host {host}"


def kill_a_launcher(training, random):
    return kill_launcher(training, random.randrange(len(training.launchers)))


def pause_all(training, random):
    """Stops launchers and ranks for a while, as on a machine that sleeps."""
    def signal_all(number):
        launchers = [launcher.process.pid for launcher in training.launchers if not launcher.is_over()]
        for pid in launchers + list(training.workers().values()):
            try:
                os.kill(pid, number)
            except ProcessLookupError:
                pass

    seconds = random.choice(_CUTS)
    signal_all(signal.SIGSTOP)
    time.sleep(seconds)
    signal_all(signal.SIGCONT)
    return f"all stand still for {seconds} s"


def damage_a_checkpoint(training, random):
    """Flips a bit of the newest checkpoint, as a disk may do, and kills a rank so that the checkpoint is read. An older
    one must exist: a training that has lost all checkpoints does not start again by itself."""
    def flip_one():
        if len(list((training.folder / "checkpoints").glob("step-????????"))) < 2:
            return None
        newest = training.folder / "checkpoints" / f"step-{training.newest_step():08}"
        try:
            path = random.choice(sorted(newest.glob("*.safetensors")))
            with open(path, "r+b") as file:
                place = random.randrange(path.stat().st_size)
                file.seek(place)
                byte = file.read(1)[0]
                file.seek(place)
                file.write(bytes([byte ^ (1 << random.randrange(8))]))
            return f"{newest.name[-5:]}/{path.stem}"
        except (OSError, IndexError):
            return None  # It has just been replaced by a newer one, or none exists yet.

    victim = wait_until(flip_one, LIMIT_SECONDS, "there is a checkpoint")
    kill_a_rank(training, random)
    return victim


# Faults in _MAY_PASS leave no trace if nothing was being written or timed.
_OF_PROCESSES = {"SIGKILL": kill_a_rank, "segfault": crash_a_rank, "hang": hang_a_rank, "launcher killed": kill_a_launcher,
                 "checkpoint damaged": damage_a_checkpoint, "machine paused": pause_all}
_MAY_PASS = ("machine paused", "disk full", "folder read-only")
# Faults that a launcher must never report as a loss.
MUST_PASS = ("clock shifted",)


class Clock:
    """The hosts' times of day in the disturbed training. They can jump: shifted_clock.cpp is preloaded."""

    _JUMPS = (-86400, -3600, 3600, 86400)  # seconds

    @staticmethod
    def library(bin_folder):
        return pathlib.Path(bin_folder) / "narrowcast_test_clock.so"

    def __init__(self, bin_folder, folder, hosts):
        self._library = self.library(bin_folder)
        self._files = [pathlib.Path(folder) / f"clock-{host}" for host in range(hosts)]
        self._seconds = [0] * hosts
        self.kinds = {"clock shifted": self.shift}
        for file in self._files:
            file.write_bytes(struct.pack("=q", 0))

    def environments(self):
        """The environment of each host's launcher."""
        return [{"LD_PRELOAD": str(self._library), "NARROWCAST_TEST_CLOCK": str(file)} for file in self._files]

    def _is_preloaded(self, host, pid):
        try:
            return f"{self._files[host]}\n" in pathlib.Path(f"/proc/{pid}/maps").read_text()
        except OSError:
            return False  # It has ended.

    def _set(self, host, seconds):
        with open(self._files[host], "r+b", buffering=0) as file:
            file.write(struct.pack("=q", seconds))

    def shift(self, training, random):
        """Shifts one host's clock, for a second or for good."""
        host = random.randrange(len(self._files))

        def has_it():
            training.start_lost()
            return any(self._is_preloaded(host, pid) for pid in training.workers().values())

        wait_until(has_it, LIMIT_SECONDS, "a rank has the clock that can be shifted")
        jump = random.choice(self._JUMPS)
        if random.choice((True, False)):
            self._seconds[host] += jump
            self._set(host, self._seconds[host])
            return f"host {host}: by {jump:+} s"
        self._set(host, self._seconds[host] + jump)
        time.sleep(1)
        self._set(host, self._seconds[host])
        return f"host {host}: by {jump:+} s for a second"


class Disk:
    """A small separate file system for a folder, which can become full or read-only. Needs root. Every namespace that
    is made later inherits the folder's mount."""

    _MEGABYTES = 64
    # Long enough for writers to meet the fault, or too short for certain.
    _SECONDS = (0.5, 3)

    def __init__(self, folder):
        self._folder = pathlib.Path(folder)
        self.kinds = {"disk full": self.fill}

    def __enter__(self):
        self._folder.mkdir(parents=True, exist_ok=True)
        subprocess.run(["mount", "-t", "tmpfs", "-o", f"size={self._MEGABYTES}m", "narrowcast-chaos", str(self._folder)],
                       check=True)
        (self._folder / "checkpoints").mkdir()
        if self._set_immutable("+i") and self._set_immutable("-i"):  # Some kernels' tmpfs lacks the attribute.
            self.kinds["folder read-only"] = self.lock
        return self

    def __exit__(self, *_):
        self._set_immutable("-i")
        subprocess.run(["umount", "-l", str(self._folder)], check=False)

    def fill(self, training, random):
        seconds = random.choice(self._SECONDS)
        filler = self._folder / "filler"
        with open(filler, "wb", buffering=0) as file:
            try:
                while True:
                    file.write(bytes(1 << 16))
            except OSError:
                pass  # The file system is full.
        time.sleep(seconds)
        filler.unlink()
        return f"for {seconds} s"

    def lock(self, training, random):
        """Makes the folder of checkpoints immutable: creating, renaming and removing fail there, for root with
        EPERM."""
        seconds = random.choice(self._SECONDS)
        if not self._set_immutable("+i"):
            raise Stuck("the folder of checkpoints cannot be made immutable")
        time.sleep(seconds)
        self._set_immutable("-i")
        return f"for {seconds} s"

    def _set_immutable(self, how):
        done = subprocess.run(["chattr", how, str(self._folder / "checkpoints")], check=False, stderr=subprocess.DEVNULL)
        return done.returncode == 0


class NoLink:
    """One host whose network cannot be disturbed."""
    kinds = _OF_PROCESSES
    may_pass = _MAY_PASS

    def __init__(self, ranks, recovery):
        self._ranks = ranks
        self._recovery = recovery

    def __enter__(self):
        return self

    def __exit__(self, *_):
        pass

    def hosts(self):
        # Faults of the network are made from outside.
        return [([], [f"--nproc_per_node={self._ranks}", "--isolate=off",
                      f"--recovery={self._recovery}"])]


def can_drop_links():
    return os.geteuid() == 0 and shutil.which("ip") is not None


class Link(NoLink):
    """One host, whose network is a namespace with only the loopback interface."""

    may_pass = ("link dropped", *_MAY_PASS)

    def __init__(self, ranks, recovery):
        super().__init__(ranks, recovery)
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
        """Takes the link down until the ranks must have noticed, or only for a moment, which connections survive."""
        seconds = random.choice(_CUTS)
        self.set("down")
        time.sleep(seconds)
        self.set("up")
        return f"the link for {seconds} s"


class Wires:
    """`count` hosts with a launcher and `ranks` / `count` ranks each. The wires between them can be cut, both ways or
    one, and made lossy or long."""
    may_pass = ("wire cut", "one way cut", "1% lost", "10% lost", "wire long", *_MAY_PASS)

    def __init__(self, count, ranks, wire, recovery, backend="c10d"):
        self._recovery = recovery
        self._backend = backend
        self.kinds = {**_OF_PROCESSES, "wire cut": self.cut, "one way cut": self.cut_one_way, "1% lost": self.lose_few,
                      "10% lost": self.lose_many, "wire long": self.delay}
        self._ranks_per_host = ranks // count
        self._network = network_namespace.Network(count, ranks_per_host=self._ranks_per_host, wire=wire)

    def __enter__(self):
        self._network.__enter__()
        return self

    def __exit__(self, *exception):
        self._network.__exit__(*exception)

    def hosts(self):
        # Always all nodes: fewer would give other bits.
        flags = [f"--nnodes={self._network.hosts}", f"--nproc_per_node={self._ranks_per_host}",
                 f"--recovery={self._recovery}", f"--rdzv_backend={self._backend}",
                 f"--rdzv_endpoint={self._network.address(0)}",
                 f"--rdzv_conf=keep_alive_interval=0.2,keep_alive_max_attempt=10,heartbeat_timeout={TIMEOUT_SECONDS}"]
        return [(self._network.command(host, ["env", f"GLOO_SOCKET_IFNAME={network_namespace.INTERFACE}"]),
                 flags if self._backend == "c10d" else [*flags, f"--node_rank={host}"])
                for host in range(self._network.hosts)]

    def host_at(self, address):
        return [self._network.address(host) for host in range(self._network.hosts)].index(address)

    def cut(self, training, random):
        """Cuts the wire until launchers and ranks must have noticed, or only for a moment, which connections
        survive."""
        return self.cut_host(random.randrange(self._network.hosts), random.choice(_CUTS))

    def cut_host(self, host, seconds):
        return self._for_a_while(host, seconds, "cut", loss=1)

    def cut_one_way(self, training, random):
        """Loses either all packets that the host sends or all packets that are sent to it."""
        to_host = random.choice((0, 1))
        return self._on_some_host(random, random.choice(_CUTS), ("deaf" if to_host else "mute"), loss=1 - to_host,
                                  loss_to_host=to_host)

    def lose_few(self, training, random):
        return self._on_some_host(random, 2, "1% lost, 10 ms longer", loss=0.01, delay_ms=10)

    def lose_many(self, training, random):
        return self._on_some_host(random, 2, "10% lost, 10 ms longer", loss=0.1, delay_ms=10)

    def delay(self, training, random):
        return self._on_some_host(random, 1, "long", delay_ms=100)

    def _on_some_host(self, random, seconds, how, **quality):
        return self._for_a_while(random.randrange(self._network.hosts), seconds, how, **quality)

    def _for_a_while(self, host, seconds, how, **quality):
        self._network.set_wire(host, **quality)
        time.sleep(seconds)
        self._network.set_wire(host)
        return f"host {host}: {how} for {seconds} s"

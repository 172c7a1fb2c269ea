"""The losses that a training may survive: of ranks, of launchers, and of hosts' networks."""
import contextlib
import dataclasses
import os
import random
import resource
import signal
import time
from collections.abc import Callable

import faults
from metered import LIMIT_SECONDS, MeteredTraining, Moment
from training import wait_until

SHORT_SECONDS = 0.3
REPETITION_SECONDS = 70
SERVED_ELSEWHERE = "from now on nodes join with --rdzv_endpoint="
LONG_SECONDS = faults.TIMEOUT_SECONDS + 1


@dataclasses.dataclass
class Scene:
    """A training, what may be hit, and the last hit."""
    training: MeteredTraining
    network: faults.Wires | None  # of several hosts
    victims: list  # ranks
    chance: random.Random
    short_of_memory: dict = dataclasses.field(default_factory=dict)  # the last time by rank, in all scenes
    hit: set = dataclasses.field(default_factory=set)  # process ids
    before: Moment | None = None
    undo: Callable[[], None] = lambda: None  # if the fault had no effect

    def aim(self, pids):
        """To be called before each blow, with the processes that it hits."""
        self.hit |= set(pids)
        earlier = self.before
        self.before = self.training.moment()
        if earlier:
            self.before = dataclasses.replace(self.before, step=max(self.before.step, earlier.step))

    def aim_at(self, rank):
        """Returns the process of the rank, which will be hit."""
        pid = wait_until(lambda: self.training.workers().get(rank), LIMIT_SECONDS, f"rank {rank} runs")
        self.aim([pid])
        return pid

    def serving_host(self):
        """The host whose launcher serves the store now: the first one, until another takes over."""
        stores = [line.rpartition("=")[2] for _, line in self.training.said() if SERVED_ELSEWHERE in line]
        return self.network.host_at(stores[-1].rpartition(":")[0]) if stores else 0

    def other_host(self):
        """A random host whose launcher does not serve the store."""
        serving = self.serving_host()
        return self.chance.choice([host for host in range(len(self.training.launchers)) if host != serving])

    def workers_of(self, host):
        return self.training.workers_of(self.training.launchers[host])


def send(number):
    def strike(scene):
        rank = scene.chance.choice(scene.victims)
        os.kill(scene.aim_at(rank), number)
        return f"rank {rank}"
    return strike


def kill_two(scene):
    first, second = scene.chance.sample(scene.victims, 2)
    os.kill(scene.aim_at(first), signal.SIGKILL)
    time.sleep(scene.chance.uniform(0, 0.6))
    os.kill(scene.aim_at(second), signal.SIGKILL)
    return f"ranks {first}, {second}"


def limit_memory(scene):
    """The rank's next allocation throws that the memory which it has freed cannot serve. A launcher takes the same error
    of a rank within a minute for one that would come again."""
    rank = min(scene.chance.sample(scene.victims, len(scene.victims)), key=lambda rank: scene.short_of_memory.get(rank, 0))
    if rank in scene.short_of_memory:
        time.sleep(max(0, scene.short_of_memory[rank] + REPETITION_SECONDS - time.monotonic()))
    pid = scene.aim_at(rank)
    scene.short_of_memory[rank] = time.monotonic()

    def set_limit(size):
        resource.prlimit(pid, resource.RLIMIT_AS, (size, resource.RLIM_INFINITY))

    set_limit(1 << 20)
    scene.undo = lambda: set_limit(resource.RLIM_INFINITY)
    return f"rank {rank}"


def kill_launcher(scene):
    return _kill_launcher_of(scene, scene.other_host())


def kill_serving_launcher(scene):
    return _kill_launcher_of(scene, scene.serving_host())


def _kill_launcher_of(scene, host):
    scene.aim(scene.workers_of(host))
    return faults.kill_launcher(scene.training, host)


def pause_host(scene):
    """Stops a host's launcher and ranks until the others must have noticed."""
    host = scene.other_host()
    pids = scene.workers_of(host)
    scene.aim(pids)
    pids = [scene.training.launchers[host].process.pid, *pids]
    for number in (signal.SIGSTOP, signal.SIGCONT):
        for pid in pids:
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, number)
        if number == signal.SIGSTOP:
            time.sleep(LONG_SECONDS)
    return f"host {host}: stands still for {LONG_SECONDS} s"


def cut_wire(scene):
    return _cut_wire_of(scene, scene.other_host())


def cut_serving_host(scene):
    """The others go on: they are more."""
    return _cut_wire_of(scene, scene.serving_host())


def _cut_wire_of(scene, host):
    scene.aim(scene.workers_of(host))
    return scene.network.cut_host(host, LONG_SECONDS)


def cut_wire_briefly(scene):
    scene.aim([])
    return scene.network.cut_host(scene.chance.randrange(len(scene.training.launchers)), SHORT_SECONDS)


OF_RANKS = {"killed": send(signal.SIGKILL), "crashes": send(signal.SIGSEGV), "hangs": send(signal.SIGSTOP),
            "two killed": kill_two, "memory": limit_memory}
OF_HOSTS = {"launcher killed": kill_launcher, "host killed": kill_serving_launcher, "host paused": pause_host,
            "wire cut": cut_wire, "host cut": cut_serving_host, "wire cut briefly": cut_wire_briefly}
KINDS = {**OF_RANKS, **OF_HOSTS}
MUST_RECOVER_IN_PLACE = set(KINDS)
REPLACES_ALL_HIT = {"wire cut", "host cut"}
MUST_PASS = {"wire cut briefly"}
MAY_PASS = {"memory", "host paused"}

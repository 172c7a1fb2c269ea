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
LONG_SECONDS = faults.TIMEOUT_SECONDS + 1


@dataclasses.dataclass
class Scene:
    """A training, what may be hit, and the last hit."""
    training: MeteredTraining
    network: faults.Wires | None  # of several hosts
    victims: list  # ranks
    chance: random.Random
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

    def random_host(self, first=0):
        return self.chance.randrange(first, len(self.training.launchers))

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
    """The rank's next allocation throws that the memory which it has freed cannot serve."""
    rank = scene.chance.choice(scene.victims)
    pid = scene.aim_at(rank)

    def set_limit(size):
        resource.prlimit(pid, resource.RLIMIT_AS, (size, resource.RLIM_INFINITY))

    set_limit(1 << 20)
    scene.undo = lambda: set_limit(resource.RLIM_INFINITY)
    return f"rank {rank}"


def kill_launcher(scene):
    return _kill_launcher_of(scene, scene.random_host(first=1))


def kill_serving_launcher(scene):
    return _kill_launcher_of(scene, 0)


def _kill_launcher_of(scene, host):
    scene.aim(scene.workers_of(host))
    return faults.kill_launcher(scene.training, host)


def pause_host(scene):
    """Stops a host's launcher and ranks until the others must have noticed."""
    host = scene.random_host(first=1)
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
    host = scene.random_host(first=1)
    scene.aim(scene.workers_of(host))
    return scene.network.cut_host(host, LONG_SECONDS)


def cut_serving_host(scene):
    """The ranks of host 0 go on, after the others have come back."""
    for host in range(1, len(scene.training.launchers)):
        scene.aim(scene.workers_of(host))
    return scene.network.cut_host(0, LONG_SECONDS)


def cut_wire_briefly(scene):
    scene.aim([])
    return scene.network.cut_host(scene.random_host(), SHORT_SECONDS)


OF_RANKS = {"killed": send(signal.SIGKILL), "crashes": send(signal.SIGSEGV), "hangs": send(signal.SIGSTOP),
            "two killed": kill_two, "memory": limit_memory}
OF_HOSTS = {"launcher killed": kill_launcher, "host killed": kill_serving_launcher, "host paused": pause_host,
            "wire cut": cut_wire, "host cut": cut_serving_host, "wire cut briefly": cut_wire_briefly}
KINDS = {**OF_RANKS, **OF_HOSTS}
# After the loss of the launcher that serves the store, all ranks start again from a checkpoint.
MUST_RECOVER_IN_PLACE = set(KINDS) - {"host killed"}
MUST_PASS = {"wire cut briefly"}
MAY_PASS = {"memory", "host paused"}

"""What may happen to a training, and how its end is recognised."""
import os
import shutil
import signal
import subprocess
import time

from training import wait_until

# A rank that hangs, or a link that is gone, is noticed after so long.
TIMEOUT_SECONDS = 3
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


def kill_the_launcher(training, random):
    training.launcher.kill()
    training.launcher.wait()
    return "the launcher"


def can_drop_links():
    return os.geteuid() == 0 and shutil.which("ip") is not None


class Link:
    """The network of a training: a namespace with nothing but the loopback interface."""

    def __init__(self):
        self.name = f"narrowcast-{os.getpid()}-chaos"

    def __enter__(self):
        subprocess.run(["ip", "netns", "add", self.name], check=True)
        self.set("up")
        return self

    def __exit__(self, *_):
        subprocess.run(["ip", "netns", "delete", self.name], check=False)

    def set(self, state):
        subprocess.run(["ip", "-n", self.name, "link", "set", "lo", state], check=True)

    def prefix(self):
        return ["ip", "netns", "exec", self.name]

    def drop(self, training, random):
        """Down until the ranks must have noticed, or a moment only: then the connections survive."""
        seconds = random.choice([0.3, TIMEOUT_SECONDS + 1])
        self.set("down")
        time.sleep(seconds)
        self.set("up")
        return f"the link for {seconds} s"


def kinds(link):
    """By name. Without a link of its own a training cannot lose it."""
    found = {"SIGKILL": kill_a_rank, "segfault": crash_a_rank, "hang": hang_a_rank, "launcher killed": kill_the_launcher}
    return {**found, "link dropped": link.drop} if link else found

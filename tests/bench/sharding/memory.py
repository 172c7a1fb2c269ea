"""The memory that ranks on this machine hold, from outside."""
import json
import pathlib
import threading
import time

PEAK, FILES, SHARED = "VmHWM", "RssFile", "RssShmem"
SHARE = "Pss_Shmem"  # Each page of shared memory divided by the number of processes that map it.


def fields(text):
    """The sizes in a file such as /proc/PID/status, by name, in bytes."""
    lines = (line.split() for line in text.splitlines())
    return {words[0].rstrip(":"): 1024 * int(words[1]) for words in lines if len(words) == 3 and words[2] == "kB"}


def held(status, rollup):
    """The most bytes that a process held since the last call of `restart`: its own memory, and its share of the memory
    that it shares. Code and other files are left out."""
    return status[PEAK] - status[FILES] - status[SHARED] + rollup[SHARE]


def take(process):
    """held() of a process, whose folder is given, since the last call. None if it has ended or has no memory left."""
    try:
        status = fields((process / "status").read_text())
        rollup = fields((process / "smaps_rollup").read_text())
        (process / "clear_refs").write_text("5")  # VmHWM starts again from the present memory.
        return held(status, rollup) if PEAK in status else None
    except OSError:
        return None


def rank_of(process):
    """The number in the variable RANK of a process, or None."""
    try:
        variables = (process / "environ").read_bytes().split(b"\0")
    except OSError:
        return None
    return next((int(each[5:]) for each in variables if each.startswith(b"RANK=")), None)


def children():
    """The folders in /proc of the processes that this one started."""
    for task in pathlib.Path("/proc/self/task").iterdir():
        try:
            pids = (task / "children").read_text().split()
        except OSError:
            continue  # The thread has ended, and its children are another thread's.
        yield from (pathlib.Path("/proc") / pid for pid in pids)


def last_step(metrics):
    """The last step in a file metrics.jsonl; 0 without one. The last line may be incomplete."""
    try:
        lines = metrics.read_text().split("\n")[:-1]
    except FileNotFoundError:
        return 0
    return max((event["step"] for event in map(json.loads, lines) if event["event"] == "step"), default=0)


class Watch:
    """Takes the memory of all ranks that this process starts within the block, from the moment when `metrics` is there to
    the last step: what comes before, e.g. loading libraries, and after, e.g. writing the model, does not count. `peaks`:
    by rank, the most bytes. `step`: the last step that was completed before they were taken."""

    def __init__(self, metrics, steps):
        self._metrics, self._steps = metrics, steps
        self._ended = threading.Event()
        self._thread = threading.Thread(target=self._run)
        self._has_begun = False  # Before the last look.
        self.peaks = {}
        self.step = 0

    def __enter__(self):
        self._thread.start()
        return self

    def __exit__(self, *_):
        self._ended.set()
        self._thread.join()

    def look(self):
        """Takes the memory of all ranks. Returns whether the training goes on."""
        taken = {rank_of(child): take(child) for child in children()}
        step = last_step(self._metrics)
        if step >= self._steps:
            return False
        self.step = step
        for rank, size in taken.items():
            if self._has_begun and rank is not None and size is not None:
                self.peaks[rank] = max(size, self.peaks.get(rank, 0))
        self._has_begun = self._metrics.exists()
        return True

    def _run(self):
        while not self._ended.is_set():
            began = time.monotonic()
            if not self.look():
                return
            self._ended.wait(max(.05, 10 * (time.monotonic() - began)))  # At most a tenth of a processor.

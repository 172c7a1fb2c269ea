"""One training under narrowcast-run, from outside: its processes, its checkpoints, and what its launcher says."""
import os
import pathlib
import re
import signal
import subprocess
import threading
import time


class Stuck(Exception):
    """Something did not happen within its time."""


def wait_until(condition, seconds, what):
    """The first true value of condition(), which is asked again and again."""
    deadline = time.monotonic() + seconds
    while True:
        value = condition()
        if value:
            return value
        if time.monotonic() > deadline:
            raise Stuck(f"not within {seconds:g} s: {what}")
        time.sleep(0.005)


class Training:
    """narrowcast-run with narrowcast-train in `folder`, as a job that its owner starts again with the same command."""

    def __init__(self, bin_folder, folder, ranks, flags, prefix=()):
        self.folder = pathlib.Path(folder)
        self.ranks = ranks
        self.identity = f"chaos-{os.getpid()}-{self.folder.name}"
        self.command = list(prefix) + [
            str(bin_folder / "narrowcast-run"), f"--nproc_per_node={ranks}", "--max_restarts=1000",
            f"--rdzv_id={self.identity}", str(bin_folder / "narrowcast-train"),
            f"--output_dir={self.folder / 'run'}", f"--checkpoint_dir={self.folder / 'checkpoints'}", "--resume"] + flags
        self.launcher = None
        self.said = []  # (time, line) of the launcher and its ranks on standard error.
        self.readers = []

    def start(self):
        self.launcher = subprocess.Popen(self.command, stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL,
                                         stderr=subprocess.PIPE, text=True, env={**os.environ, "OMP_NUM_THREADS": "1"})
        reader = threading.Thread(target=self._read, args=(self.launcher.stderr,), daemon=True)
        reader.start()
        self.readers.append(reader)

    def _read(self, stream):
        for line in stream:
            self.said.append((time.monotonic(), line.rstrip("\n")))

    def is_over(self):
        return self.launcher.poll() is not None

    def finish(self, seconds):
        """Waits for its end; the exit code."""
        wait_until(self.is_over, seconds, "the training ends")
        for reader in self.readers:
            reader.join()
        return self.launcher.returncode

    def stop(self):
        """Ends what is left of it."""
        if self.launcher and not self.is_over():
            self.launcher.kill()
            self.launcher.wait()
        for pid in self.workers().values():
            try:
                os.kill(pid, signal.SIGKILL)
            except ProcessLookupError:
                pass

    def workers(self):
        """Process ids by rank, of the ranks that live."""
        found = {}
        for entry in pathlib.Path("/proc").iterdir():
            if not entry.name.isdigit():
                continue
            try:
                variables = (entry / "environ").read_bytes().split(b"\0")
                state = (entry / "stat").read_text().rpartition(")")[2].split()[0]
            except OSError:
                continue  # It ended meanwhile.
            if f"TORCHELASTIC_RUN_ID={self.identity}".encode() not in variables or state == "Z":
                continue
            rank = next((v for v in variables if v.startswith(b"RANK=")), None)
            if rank:
                found[int(rank[len(b"RANK="):])] = int(entry.name)
        return found

    def newest_step(self):
        """Of the newest whole checkpoint; 0 if there is none."""
        try:
            names = os.listdir(self.folder / "checkpoints")
        except FileNotFoundError:
            return 0
        return max((int(match[1]) for match in (re.fullmatch(r"step-(\d+)", name) for name in names) if match), default=0)

    def model(self):
        """The bytes of the trained model."""
        return (self.folder / "run" / "model.safetensors").read_bytes()

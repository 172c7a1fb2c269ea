"""One training under narrowcast-run, from outside: its processes, its checkpoints, and its launchers' messages."""
import os
import pathlib
import re
import signal
import subprocess
import threading
import time


def _parent(pid):
    """The process that started this one; None if it has ended."""
    try:
        return int(pathlib.Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[1])
    except OSError:
        return None


def living(pids):
    """Those of the processes that have not ended."""
    found = set()
    for pid in pids:
        try:
            state = pathlib.Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
        except OSError:
            continue
        if state != "Z":
            found.add(pid)
    return found


def _environments_of_living():
    """(process id, variables) of each process."""
    for entry in pathlib.Path("/proc").iterdir():
        if not entry.name.isdigit():
            continue
        try:
            variables = (entry / "environ").read_bytes().decode(errors="replace").split("\0")
            state = (entry / "stat").read_text().rpartition(")")[2].split()[0]
        except OSError:
            continue  # It has ended meanwhile.
        if state != "Z":
            yield int(entry.name), dict(variable.split("=", 1) for variable in variables if "=" in variable)


class Stuck(Exception):
    """Something did not happen in time."""


def wait_until(condition, seconds, what):
    """The first true value of condition(), which is called repeatedly."""
    deadline = time.monotonic() + seconds
    while True:
        begin = time.monotonic()
        value = condition()
        if value:
            return value
        if time.monotonic() > deadline:
            raise Stuck(f"not within {seconds:g} s: {what}")
        time.sleep(max(0.005, 4 * (time.monotonic() - begin)))  # The training needs the processors.


# A launcher that lost another node's network or host ends with this code, so that its owner restarts it.
NODE_LOST = 3


class Launcher:
    """narrowcast-run on one host, and the standard error of it and its ranks."""

    def __init__(self, command, environment):
        self.command = command
        self.environment = environment
        self.process = None
        self.killed = False
        self.said = []  # (time, line)
        self.reader = None

    def start(self):
        self.killed = False
        self.process = subprocess.Popen(self.command, stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL,
                                        stderr=subprocess.PIPE, text=True, env={**os.environ, "OMP_NUM_THREADS": "1", **self.environment})
        self.reader = threading.Thread(target=self._read, args=(self.process.stderr,), daemon=True)
        self.reader.start()

    def _read(self, stream):
        for line in stream:
            self.said.append((time.monotonic(), line.rstrip("\n")))

    def is_over(self):
        return self.process is not None and self.process.poll() is not None

    def kill(self):
        self.killed = True
        self.process.kill()
        self.process.wait()


def trainer_commands(bin_folder, folder, flags, hosts):
    """The commands of narrowcast-run with narrowcast-train. `hosts`: for each, a prefix of its command, and its
    launcher's flags."""
    folder = pathlib.Path(folder)
    return [[*prefix, str(bin_folder / "narrowcast-run"), *launcher_flags, "--max_restarts=1000",
             f"--rdzv_id={identity_of(folder)}", str(bin_folder / "narrowcast-train"), f"--output_dir={folder / 'run'}",
             f"--checkpoint_dir={folder / 'checkpoints'}", "--resume", *flags] for prefix, launcher_flags in hosts]


def identity_of(folder):
    """The launchers' --rdzv_id, by which the ranks are found."""
    return f"chaos-{os.getpid()}-{pathlib.Path(folder).name}"


class Training:
    """A training in `folder`, with one launcher on each of the hosts. The job's owner restarts its launchers with the
    same commands. `environments`: variables for each. `has_fixed_ranks`: no process ever changes its rank."""

    rank_variable = "RANK"

    def __init__(self, folder, commands, environments=None, has_fixed_ranks=False):
        self.has_fixed_ranks = has_fixed_ranks
        self.folder = pathlib.Path(folder)
        self.launchers = [Launcher(command, environment)
                          for command, environment in zip(commands, environments or [{}] * len(commands))]

    def start(self):
        for launcher in self.launchers:
            launcher.start()

    def start_lost(self):
        """Starts the launchers that were killed, or that ended because they had lost another node."""
        for launcher in self.launchers:
            if launcher.is_over() and (launcher.killed or launcher.process.returncode == NODE_LOST):
                launcher.reader.join()
                launcher.start()

    def is_over(self):
        """Whether a launcher has ended for good; all others end at the same time, or soon."""
        return any(launcher.is_over() and not launcher.killed and launcher.process.returncode != NODE_LOST
                   for launcher in self.launchers)

    def finish(self, seconds):
        """Waits for the end of the training. Returns the first exit code that is not 0, or 0."""
        def ended():
            self.start_lost()
            return all(launcher.is_over() for launcher in self.launchers)

        wait_until(ended, seconds, "the training ends")
        for launcher in self.launchers:
            launcher.reader.join()
        return next((launcher.process.returncode for launcher in self.launchers if launcher.process.returncode != 0), 0)

    def stop(self):
        """Ends all remaining processes."""
        for launcher in self.launchers:
            if launcher.process and not launcher.is_over():
                launcher.kill()
        for pid in self.workers().values():
            try:
                os.kill(pid, signal.SIGKILL)
            except ProcessLookupError:
                pass

    def said(self):
        """(time, line) of all launchers and their ranks on standard error, in the order of time."""
        return sorted(pair for launcher in self.launchers for pair in list(launcher.said))

    def workers_of(self, launcher):
        """Process ids of the living ranks that this launcher started."""
        return [pid for pid in self.workers().values() if _parent(pid) == launcher.process.pid]

    def workers(self):
        """Process ids of the living ranks, by rank. A process on nodes that change keeps the variables of its start, so
        its rank follows from the nodes that live: they have the same number of ranks each."""
        found, placed = {}, {}
        for pid, variables in _environments_of_living():
            if variables.get("TORCHELASTIC_RUN_ID") != identity_of(self.folder) or self.rank_variable not in variables:
                continue
            if "NARROWCAST_NODE" in variables and not self.has_fixed_ranks:
                node, rank_on_node = variables["NARROWCAST_NODE"].split("/")
                placed[int(node), int(rank_on_node)] = pid, int(variables["LOCAL_WORLD_SIZE"])
            else:
                found[int(variables[self.rank_variable])] = pid
        nodes = sorted({node for node, _ in placed})
        for (node, rank_on_node), (pid, ranks) in placed.items():
            found[nodes.index(node) * ranks + rank_on_node] = pid
        return found

    def newest_step(self):
        """The step of the newest complete checkpoint; 0 if none exists."""
        try:
            names = os.listdir(self.folder / "checkpoints")
        except FileNotFoundError:
            return 0
        return max((int(match[1]) for match in (re.fullmatch(r"step-(\d+)", name) for name in names) if match), default=0)

    def model(self):
        """The bytes of the trained model."""
        return (self.folder / "run" / "model.safetensors").read_bytes()

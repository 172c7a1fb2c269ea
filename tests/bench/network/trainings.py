"""The measured trainings: narrowcast-train with a char_gpt, and the same in Python."""
import dataclasses
import pathlib
import subprocess
import sys
import tempfile

import program


OF_PYTHON = "python:"  # Prefix of the names of hooks with which python_training.py trains.
HERE = pathlib.Path(__file__).resolve().parent


@dataclasses.dataclass(frozen=True)
class Size:
    """The flags of a char_gpt, and its sequences per rank and step."""
    flags: tuple
    sequences_per_rank: int


# 10.7 million parameters; and 110 thousand, as in narrowcast_numerics_bench with four ranks.
LARGE = Size(("--layers=6", "--heads=6", "--width=384", "--context=64"), 2)
SMALL = Size(("--layers=2", "--heads=4", "--width=64", "--context=64", "--learning_rate=0.003"), 8)
SIZES = {"large": LARGE, "small": SMALL}


class Trainings:
    """narrowcast-train with the flags that all trainings share. `arguments` has `bin` and `data`."""

    def __init__(self, arguments, size=LARGE):
        self._size = size
        self._command = [str(arguments.bin / "narrowcast-train"), "--model=char_gpt", *size.flags,
                         f"--data={arguments.data}", "--device=cpu", "--threads=1", "--sample_length=0"]
        self._python = [sys.executable, "-W", "ignore", str(HERE / "python_training.py"), *size.flags,
                        f"--data={arguments.data}", f"--libraries={arguments.bin.parent / 'lib'}"]

    def _command_of(self, flags):
        if not any(flag.startswith(f"--hook={OF_PYTHON}") for flag in flags):
            return self._command + list(flags)
        return self._python + [flag.replace(f"--hook={OF_PYTHON}", "--hook=") for flag in flags]

    def check(self, flags):
        """Checks in one process that the flags and the data exist."""
        done = subprocess.run(self._command_of(flags) + ["--dry_run"], stdin=subprocess.DEVNULL, capture_output=True, text=True)
        if done.returncode != 0:
            raise program.WrongUse(done.stderr.strip())

    def metrics(self, network, layout, flags):
        """The text of metrics.jsonl of a training on all hosts of the network."""
        with tempfile.TemporaryDirectory() as folder:
            network.run_ranks(self._command_of(flags) + [f"--batch_size={self._size.sequences_per_rank * layout.ranks}",
                                                         f"--output_dir={folder}/run"])
            return (pathlib.Path(folder) / "run" / "metrics.jsonl").read_text()

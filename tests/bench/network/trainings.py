"""The trainings that are measured: narrowcast-train with a char_gpt."""
import dataclasses
import pathlib
import subprocess
import tempfile

import program


@dataclasses.dataclass(frozen=True)
class Size:
    """Of a char_gpt, and of what is trained at a time."""
    flags: tuple
    sequences_per_rank: int


# 10.7 million parameters, and 110 thousand: as narrowcast_numerics_bench trains, with four ranks.
LARGE = Size(("--layers=6", "--heads=6", "--width=384", "--context=64"), 2)
SMALL = Size(("--layers=2", "--heads=4", "--width=64", "--context=64", "--learning_rate=0.003"), 8)
SIZES = {"large": LARGE, "small": SMALL}


class Trainings:
    """narrowcast-train with the flags that all trainings share. `arguments`: has `bin` and `data`."""

    def __init__(self, arguments, size=LARGE):
        self._size = size
        self._command = [str(arguments.bin / "narrowcast-train"), "--model=char_gpt", *size.flags,
                         f"--data={arguments.data}", "--device=cpu", "--threads=1", "--sample_length=0"]

    def check(self, flags):
        """What one process can: that there are such flags and such data."""
        done = subprocess.run(self._command + [*flags, "--dry_run"], stdin=subprocess.DEVNULL, capture_output=True, text=True)
        if done.returncode != 0:
            raise program.WrongUse(done.stderr.strip())

    def metrics(self, network, layout, flags):
        """The text of metrics.jsonl of a training on all hosts of the network."""
        with tempfile.TemporaryDirectory() as folder:
            network.run_ranks(self._command + [*flags, f"--batch_size={self._size.sequences_per_rank * layout.ranks}",
                                               f"--output_dir={folder}/run"])
            return (pathlib.Path(folder) / "run" / "metrics.jsonl").read_text()

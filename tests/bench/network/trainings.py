"""The training whose steps are measured: narrowcast-train with a char_gpt of 10.7 million parameters."""
import pathlib
import subprocess
import tempfile

import program

MODEL = ["--model=char_gpt", "--layers=6", "--heads=6", "--width=384", "--context=64"]
SEQUENCES_PER_RANK = 2


class Trainings:
    """narrowcast-train with the flags that all trainings share. `arguments`: has `bin` and `data`."""

    def __init__(self, arguments):
        self._command = [str(arguments.bin / "narrowcast-train"), *MODEL, f"--data={arguments.data}", "--device=cpu",
                         "--threads=1", "--sample_length=0"]

    def check(self, flags):
        """What one process can: that there are such flags and such data."""
        done = subprocess.run(self._command + [*flags, "--dry_run"], stdin=subprocess.DEVNULL, capture_output=True, text=True)
        if done.returncode != 0:
            raise program.WrongUse(done.stderr.strip())

    def metrics(self, network, layout, flags):
        """The text of metrics.jsonl of a training on all hosts of the network."""
        with tempfile.TemporaryDirectory() as folder:
            network.run_ranks(self._command + [*flags, f"--batch_size={SEQUENCES_PER_RANK * layout.ranks}",
                                               f"--output_dir={folder}/run"])
            return (pathlib.Path(folder) / "run" / "metrics.jsonl").read_text()

"""The trainings of one size and layout, and what they take. Import it with tests/bench/network in the path."""
import contextlib
import os
import pathlib
import statistics
import tempfile

import memory
import step_times
import tables
from program import network_namespace
from ways import WAYS

# Steps of the trainings whose memory is compared with the formula; the narrow model's last some milliseconds each.
WIDE_STEPS, NARROW_STEPS = 15, 300
REPORTED = 5  # Steps of a timed training between two reports.
LEAST_STEP = 4  # All buffers exist after so many steps.
MALLOC_THRESHOLD = "MALLOC_MMAP_THRESHOLD_"  # glibc's; mallopt(3)


class Impossible(Exception):
    """This machine cannot measure a training; the text describes why."""


@contextlib.contextmanager
def malloc_that_returns_memory(is_wanted):
    """Processes that start in the block return freed blocks of 64 KiB or more to the system at once."""
    if is_wanted:
        os.environ[MALLOC_THRESHOLD] = str(64 << 10)
    try:
        yield
    finally:
        if is_wanted:
            del os.environ[MALLOC_THRESHOLD]


class Trainings:
    """The trainings of one layout."""

    def __init__(self, arguments, network, layout, data):
        self._arguments, self._network, self._layout, self._data = arguments, network, layout, data

    def run(self, way, size, steps, every=1):
        """Trains. Returns the peak bytes by rank, and the seconds of each step after the warm-up. The programs in C++ report
        `every` so many steps, since a report waits for an exchange that would overlap with the next step."""
        with tempfile.TemporaryDirectory() as folder:
            output = pathlib.Path(folder) / "run"
            every = 1 if WAYS[way].python else every
            command = WAYS[way].command(self._arguments, size, self._layout, every)
            with memory.Watch(output / "metrics.jsonl", steps) as watch:
                self._network.run_ranks(command + [f"--steps={steps}", f"--data={self._data}", f"--output_dir={output}"])
            metrics = (output / "metrics.jsonl").read_text()
        if watch.step < LEAST_STEP or len(watch.peaks) < self._layout.ranks:
            raise Impossible("the machine is too busy to measure memory: no process looked after the first steps")
        return watch.peaks, step_times.seconds_of_steps(metrics, steps, self._arguments.warmup, every)

    def timed(self, way, size):
        """As run(). The warm-up and the measured steps are divisible by REPORTED."""
        return self.run(way, size, self._arguments.warmup + self._arguments.steps, REPORTED)

    def state(self, way, size):
        """The bytes per parameter that a training holds."""
        few = size.with_few_tokens()
        with malloc_that_returns_memory(not self._arguments.keep_freed):
            wide, _ = self.run(way, few, WIDE_STEPS)
            narrow, _ = self.run(way, few.narrow(), NARROW_STEPS)
        return tables.per_parameter(wide, narrow, few.parameters - few.narrow().parameters)

    def check_memory(self, way, size):
        """Raises Impossible if a training may need more than there is: a quarter more than the formula, and half a
        gigabyte per rank for libraries and activations."""
        formula = WAYS[way].bytes_per_parameter(self._layout, self._arguments.gradient_as_bucket_view)
        needed = self._layout.ranks * (1.25 * size.parameters * formula + 5e8)
        available = memory.fields(pathlib.Path("/proc/meminfo").read_text())["MemAvailable"]
        if needed > available:
            raise Impossible(f"may need {needed / 1e9:.0f} GB of memory, and {available / 1e9:.0f} GB are left")


class Comparison:
    """What was found with one size and layout: Measured by way, and the errors of ways that failed."""

    def __init__(self):
        self.found, self.failures = {}, {}

    def measure(self, trainings, way, size):
        """Trains once more, and returns what was found, as text. The state's memory is measured in the first turn."""
        if way in self.failures:
            return "failed before"
        try:
            measured = self.found.get(way) or tables.Measured()
            if not measured.seconds:
                trainings.check_memory(way, size)
                measured.per_parameter = trainings.state(way, size)
            peaks, seconds = trainings.timed(way, size)
        except (network_namespace.RankFailed, Impossible) as error:
            self.failures[way] = str(error).strip().splitlines()[-1]
            self.found.pop(way, None)
            return str(error)
        measured.peak = max(measured.peak, *peaks.values())
        measured.seconds += seconds
        self.found[way] = measured
        return (f"{statistics.median(seconds):.3f} s, {measured.per_parameter:.2f} bytes/parameter, "
                f"{measured.peak / 1e6:.0f} MB in all")

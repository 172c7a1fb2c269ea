"""tests/bench/network/python_training.py runs the given number of steps, and trains the same as narrowcast-train."""
import json
import os
import pathlib
import subprocess
import tempfile
import unittest

from support.ranks import run_script_on_ranks

ROOT = pathlib.Path(__file__).resolve().parents[3]
SHARED = ["--layers=2", "--heads=2", "--width=16", "--context=8", "--steps=3", "--batch_size=4", f"--data={ROOT / 'README.md'}"]


def events_of(test, hook):
    with tempfile.TemporaryDirectory() as folder:
        run_script_on_ranks(test, 2, ROOT / "tests/bench/network/python_training.py", f"--hook={hook}", "--bucket_cap_mb=25",
                            f"--libraries={os.environ['NARROWCAST_LIBRARY_DIR']}", f"--output_dir={folder}/run", *SHARED)
        return [json.loads(line) for line in (pathlib.Path(folder) / "run/metrics.jsonl").read_text().splitlines()]


class PythonTraining(unittest.TestCase):
    def test_has_the_model_and_steps_of_narrowcast_train(self):
        planned = subprocess.run([os.environ["NARROWCAST_TRAIN"], "--model=char_gpt", "--device=cpu", "--dry_run", *SHARED],
                                 check=True, stdout=subprocess.PIPE, text=True).stdout
        plan = dict(line.split(maxsplit=1) for line in planned.splitlines())
        for hook in ("bf16_compress", "narrowcast.int8"):
            with self.subTest(hook=hook):
                start, *steps = events_of(self, hook)
                self.assertEqual(str(start["parameters"]), plan["parameters"])
                self.assertEqual([event["step"] for event in steps], [1, 2, 3])


if __name__ == "__main__":
    unittest.main()

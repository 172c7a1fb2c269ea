#!/usr/bin/env python3
"""Tests run with a fake bench, whose trainings take no time."""
import json
import os
import pathlib
import signal
import subprocess
import sys
import tempfile
import time
import unittest

HERE = pathlib.Path(__file__).resolve().parent

# Handles flags and files as narrowcast_numerics_bench does, and counts its trainings. script.json beside it defines its
# output and its failures: {"gaps": {kind of training: {hook: the rest of its row}},
# "broken": {"steps": of trainings, "ways": {part or "table": "fails" or "waits"}}}.
FAKE_BENCH = """#!""" + sys.executable + """
import json, os, pathlib, sys, time

here = pathlib.Path(__file__).parent
flags = dict(word.removeprefix("--").split("=", 1) for word in sys.argv[1:])  # The last of each counts.
script = json.loads((here / "script.json").read_text())


def end(message, code):
    print("narrowcast_numerics_bench: " + message, file=sys.stderr)
    sys.exit(code)


hooks = flags["hooks"].split(",")
for hook in hooks:
    if hook not in ("fp16", "var4", "var3", "fed_back_var4"):
        end(f"--hooks: '{hook}' is not a hook or format with a measured loss", 2)
if pathlib.Path(flags["data"]).is_dir() and not os.listdir(flags["data"]):
    end(flags["data"] + ": no images", 4)
with open(here / "started.jsonl", "a") as file:
    file.write(json.dumps(flags) + "\\n")
results = pathlib.Path(flags["results"])
results.touch()
part, parts = map(int, flags.get("part", "1/1").split("/"))
broken = script.get("broken", {"steps": None})
way = broken["ways"].get(flags.get("part", "table")) if flags["steps"] == broken["steps"] else None
if way == "fails":
    end("out of luck", 5)
if way == "waits":
    (here / "waits").write_text(str(os.getpid()))
    time.sleep(600)
for number, (seed, hook) in enumerate((seed, hook) for seed in range(int(flags["seeds"])) for hook in ["none"] + hooks):
    training = json.dumps([flags["model"], flags["data"], flags["steps"], flags.get("learning_rate"), hook, seed])
    if number % parts == part - 1 and training not in results.read_text().splitlines():
        with results.open("a") as file:
            file.write(training + "\\n")
        if flags["steps"] != "1":
            with open(here / "trained.jsonl", "a") as file:
                file.write(json.dumps([training, flags.get("part")]) + "\\n")
if "part" not in flags:
    print(f"\\nvalidation loss less that of none (2.{flags['steps']}), over {flags['seeds']} seeds (x 1e-3)")
    print("%-20s %8s %8s" % ("hook or format", "mean", "s.e."))
    rows = script.get("gaps", {}).get(results.stem, {})
    for hook in hooks:
        print(f"{hook:20}" + rows.get(hook, "     0.10     0.20"))
    sys.exit(1 if any("MISSED" in row for row in rows.values()) else 0)
"""
HOLDS, MISSED = "     1.50     0.25  holds (target 2)", "    -4.00    11.00  MISSED (target 2)"


class Runs(unittest.TestCase):
    def setUp(self):
        made = tempfile.TemporaryDirectory()
        self.addCleanup(made.cleanup)
        self.folder = pathlib.Path(made.name)
        bench = self.folder / "narrowcast_numerics_bench"
        bench.write_text(FAKE_BENCH)
        bench.chmod(0o755)
        self.script({})
        (self.folder / "book.txt").write_text("a text")
        (self.folder / "mnist").mkdir()
        (self.folder / "mnist/images").write_text("some")

    def script(self, script):
        (self.folder / "script.json").write_text(json.dumps(script))

    def command(self, *flags):
        return [sys.executable, HERE / "run", f"--bin={self.folder}", f"--results={self.folder}/results",
                f"--text={self.folder}/book.txt", f"--digits={self.folder}/mnist", "--jobs=2", "--seeds=2",
                "--hooks=var4,fp16", *flags]

    def run_with(self, *flags):
        return subprocess.run(self.command(*flags), capture_output=True, text=True, timeout=60)

    def lines_of(self, name):
        file = self.folder / name
        return [json.loads(line) for line in file.read_text().splitlines()] if file.exists() else []

    def started(self):
        """The flags of all runs except the checks."""
        return [flags for flags in self.lines_of("started.jsonl") if flags["steps"] != "1"]

    def refusal_of(self, *flags):
        ended = self.run_with(*flags)
        self.assertEqual((ended.returncode, ended.stdout), (2, ""), ended.stderr)
        self.assertEqual(self.started(), [])
        return ended.stderr.splitlines()[-1]


class Tables(Runs):
    def test_has_a_row_for_each_hook_and_a_column_for_each_kind_of_training(self):
        self.script({"gaps": {"text": {"var4": HOLDS}, "long_text": {"var4": HOLDS}, "digits": {"var4": HOLDS},
                              "long_digits": {"var4": HOLDS, "fp16": "      nan      nan"}}})
        ended = self.run_with(f"--report={self.folder}/table.md")
        self.assertEqual(ended.returncode, 0, ended.stderr)
        self.assertEqual(ended.stdout.splitlines(), [
            "- text: char_gpt, 700 steps, 2 seeds; `none` came to 2.700",
            "- long_text: char_gpt, 2,800 steps, 2 seeds; `none` came to 2.2800",
            "- digits: mlp, 700 steps, 2 seeds; `none` came to 2.700",
            "- long_digits: mlp, 2,800 steps, 2 seeds; `none` came to 2.2800",
            "",
            "Validation loss less that of `none`, times 1e-3, with the standard error; bold: above target.",
            "",
            "| hook or format | text | long_text | digits | long_digits | target |",
            "| --- | --- | --- | --- | --- | --- |",
            "| `var4` | 1.50 (0.25) | 1.50 (0.25) | 1.50 (0.25) | 1.50 (0.25) | 2 |",
            "| `fp16` | 0.10 (0.20) | 0.10 (0.20) | 0.10 (0.20) | nan (nan) |  |"])
        self.assertEqual((self.folder / "table.md").read_text(), ended.stdout)

    def test_a_missed_target_is_bold_and_an_exit_code(self):
        self.script({"gaps": {"text": {"var4": HOLDS}, "digits": {"var4": MISSED}}})
        ended = self.run_with("--trainings=digits,text")
        self.assertEqual(ended.returncode, 1, ended.stderr)
        self.assertIn("| `var4` | **-4.00 (11.00)** | 1.50 (0.25) | 2 |", ended.stdout.splitlines())

    def test_what_is_no_table_is_an_error(self):
        begin = "     0.10     0.20"
        for row in (begin + "  perhaps (target 2)", begin + "  holds", "     0.10", "     1e-1     0.20"):
            self.script({"gaps": {"text": {"var4": row}}})
            ended = self.run_with("--trainings=text")
            self.assertEqual((ended.returncode, ended.stdout), (3, ""))
            self.assertIn(row + "', which is not as its tables are", ended.stderr)
        self.script({"gaps": {"text": {"var4": "\nvar3" + HOLDS}}})
        self.assertEqual(self.run_with("--trainings=text").returncode, 3)


class Trainings(Runs):
    def test_every_kind_is_trained_in_parts_with_its_flags(self):
        self.assertEqual(self.run_with().returncode, 0)
        text = {"model": "char_gpt", "data": f"{self.folder}/book.txt"}
        digits = {"model": "mlp", "data": f"{self.folder}/mnist", "learning_rate": "1e-3"}
        kinds = {"text": text | {"steps": "700"}, "long_text": text | {"steps": "2800"},
                 "digits": digits | {"steps": "700"}, "long_digits": digits | {"steps": "2800"}}
        expected = []
        for name, kind in kinds.items():
            whole = kind | {"seeds": "2", "hooks": "var4,fp16", "errors": "false",
                            "results": f"{self.folder}/results/{name}.jsonl"}
            expected += [whole | {"part": "1/2"}, whole | {"part": "2/2"}, whole]
        started = self.started()
        for first in range(0, len(started), 3):  # Parts begin in any order.
            started[first:first + 2] = sorted(started[first:first + 2], key=lambda flags: flags["part"])
        self.assertEqual(started, expected)
        self.assertEqual(len(self.lines_of("trained.jsonl")), 4 * 2 * 3)
        self.assertNotIn(None, [part for _, part in self.lines_of("trained.jsonl")])  # The table trains nothing.

    def test_go_on_from_what_is_there(self):
        self.assertEqual(self.run_with("--trainings=text").returncode, 0)
        self.assertEqual(len(self.lines_of("trained.jsonl")), 6)
        self.assertEqual(self.run_with("--trainings=text").returncode, 0)
        self.assertEqual(len(self.lines_of("trained.jsonl")), 6)
        self.assertEqual(self.run_with("--trainings=text,digits", "--hooks=var4,fp16,fed_back_var4").returncode, 0)
        self.assertEqual(len(self.lines_of("trained.jsonl")), 6 + 2 + 8)

    def test_data_of_others_is_not_needed(self):
        command = [word for word in self.command("--trainings=text") if not str(word).startswith("--digits")]
        self.assertEqual(subprocess.run(command, capture_output=True).returncode, 0)


class Ends(Runs):
    def waiting(self):
        """The process of the bench that waits, once it waits."""
        file = self.folder / "waits"
        until = time.monotonic() + 30
        while not file.exists() or not file.read_text():
            self.assertLess(time.monotonic(), until)
            time.sleep(.01)
        return int(file.read_text())

    def test_a_part_that_fails_ends_the_others(self):
        for ways in ({"1/2": "waits", "2/2": "fails"}, {"1/2": "fails", "2/2": "waits"}):
            self.script({"broken": {"steps": "2800", "ways": ways}})
            ended = self.run_with("--trainings=text,long_text")
            self.assertEqual((ended.returncode, ended.stdout), (3, ""))
            self.assertEqual(ended.stderr.splitlines()[-1], "tests/bench/numerics/run: narrowcast_numerics_bench ended "
                             "with exit code 5: narrowcast_numerics_bench: out of luck")
            if (self.folder / "waits").exists():  # Otherwise it was ended before it got there.
                self.assertFalse(os.path.exists(f"/proc/{self.waiting()}"))

    def test_a_table_that_fails_is_an_error(self):
        self.script({"broken": {"steps": "700", "ways": {"table": "fails"}}})
        ended = self.run_with("--trainings=text")
        self.assertEqual((ended.returncode, ended.stdout), (3, ""))
        self.assertIn("exit code 5", ended.stderr)

    def test_when_stopped_nothing_is_left_behind_and_it_goes_on(self):
        for number in (signal.SIGINT, signal.SIGTERM):
            (self.folder / "waits").unlink(missing_ok=True)
            self.script({"broken": {"steps": "2800", "ways": {"2/2": "waits"}}})
            running = subprocess.Popen(self.command("--trainings=long_text"), stderr=subprocess.PIPE, text=True)
            process = self.waiting()
            running.send_signal(number)
            said = running.communicate(timeout=30)[1]
            self.assertEqual(running.returncode, 128 + number)
            self.assertEqual(said.splitlines()[-1],
                             "tests/bench/numerics/run: stopped; run the same command again to resume")
            self.assertFalse(os.path.exists(f"/proc/{process}"))
        self.script({})
        self.assertEqual(self.run_with("--trainings=long_text").returncode, 0)
        self.assertEqual(len(self.lines_of("trained.jsonl")), 6)


class Refusals(Runs):
    def test_hooks_that_the_bench_does_not_know(self):
        self.assertEqual(self.refusal_of("--hooks=var4,var9"),
                         "tests/bench/numerics/run: --hooks: 'var9' is not a hook or format with a measured loss")
        self.assertIn("argument --hooks: '' has an empty name", self.refusal_of("--hooks="))

    def test_kinds_of_training_that_there_are_not(self):
        self.assertIn("argument --trainings: 'words' is not one of text, long_text, digits, long_digits",
                      self.refusal_of("--trainings=text,words"))

    def test_data_that_is_not_there(self):
        self.assertIn("argument --text: '/nowhere/x' is not a file", self.refusal_of("--text=/nowhere/x"))
        self.assertIn("argument --digits: '/nowhere' is not a folder", self.refusal_of("--digits=/nowhere"))
        for flag, training in (("text", "text"), ("digits", "digits")):
            command = [word for word in self.command() if not str(word).startswith(f"--{flag}=")]
            ended = subprocess.run(command, capture_output=True, text=True)
            self.assertEqual(ended.returncode, 2)
            self.assertIn(f"--{flag}: is needed for the training {training}; --trainings can leave it out",
                          ended.stderr)

    def test_data_that_is_something_else(self):
        (self.folder / "mnist/images").unlink()
        self.assertEqual(self.refusal_of(), f"tests/bench/numerics/run: {self.folder}/mnist: no images")

    def test_places_where_nothing_can_be_written(self):
        for place in ("", "/nowhere/x", str(self.folder / "book.txt")):
            self.assertIn(f"argument --results: '{place}' cannot be a folder",
                          self.refusal_of(f"--results={place}"))
        for place in ("", "/nowhere/x", str(self.folder)):
            self.assertIn(f"argument --report: '{place}' cannot be written", self.refusal_of(f"--report={place}"))

    def test_a_bench_that_is_not_built(self):
        self.assertIn("has no narrowcast_numerics_bench; build it, or name its folder with --bin",
                      self.refusal_of(f"--bin={self.folder}/mnist"))

    def test_what_is_no_count(self):
        for flag in ("seeds", "jobs"):
            self.assertIn(f"argument --{flag}: '0' is not a positive whole number", self.refusal_of(f"--{flag}=0"))


if __name__ == "__main__":
    unittest.main()

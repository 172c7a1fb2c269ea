#!/usr/bin/env python3
"""Tests ./quickstart with and without permission for network namespaces: quickstart_test.py NARROWCAST_RUN.

The set-up, the build and narrowcast-train are replaced by stand-ins. Only quickstart's own text and narrowcast-run are run.
Exit code 77 (skipped) if the test cannot change a kernel setting, for which it needs a user namespace.
"""
import os
import pathlib
import shutil
import subprocess
import sys
import tempfile
import unittest

ROOT = pathlib.Path(__file__).resolve().parents[2]
SKIPPED = 77
LIMIT_SECONDS = 60
FORBIDDEN = ["unshare", "--user", "--map-root-user", "sh", "-c",
             'echo 0 >/proc/sys/user/max_net_namespaces && exec "$@"', "sh"]
NO_NETWORK = "== no simulated network: all three trainings will take the same time"
REASON = "narrowcast-run: --simulate_gbit=0.1: this process cannot get a private network: No space left on device"
# Rank 0 prints and writes the results that quickstart reads, and records its arguments and its network.
TRAIN = """#!/bin/sh
[ "${RANK-0}" = 0 ] || exit 0
for argument in "$@"; do
  case $argument in --output_dir=*) folder=${argument#*=} ;; esac
done
echo "$* [${NARROWCAST_SIMULATED_NETWORK-no network}]" >>trainings.txt
echo "sent per rank    1.0 MB"
if [ -n "${folder-}" ]; then
  mkdir -p "$folder"
  echo '{"event":"end","seconds":2.0}' >"$folder/metrics.jsonl"
fi
"""
narrowcast_run = None


def write_program(path, text):
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text)
    path.chmod(0o755)


def can_forbid():
    return subprocess.run(FORBIDDEN + ["true"], stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL).returncode == 0


def can_simulate():
    return subprocess.run([narrowcast_run, "--simulate_gbit=0.1", "true"], stdout=subprocess.DEVNULL,
                          stderr=subprocess.DEVNULL).returncode == 0


class QuickstartTest(unittest.TestCase):
    def setUp(self):
        folder = tempfile.TemporaryDirectory()
        self.addCleanup(folder.cleanup)
        self.folder = pathlib.Path(folder.name)
        shutil.copy2(ROOT / "quickstart", self.folder)
        binaries = self.folder / "build" / "release" / "bin"
        write_program(self.folder / "third_party" / "setup", "#!/bin/sh\n")
        write_program(self.folder / "stand_ins" / "cmake", "#!/bin/sh\n")
        write_program(binaries / "narrowcast-train", TRAIN)
        (binaries / "narrowcast-run").symlink_to(narrowcast_run)

    def run_quickstart(self, before):
        """Runs `before` with quickstart appended. Returns the output and the arguments of each hook's training."""
        environment = {**os.environ, "PATH": f"{self.folder / 'stand_ins'}:{os.environ['PATH']}"}
        end = subprocess.run(before + [str(self.folder / "quickstart")], env=environment, stdin=subprocess.DEVNULL,
                             stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, timeout=LIMIT_SECONDS)
        self.assertEqual(end.returncode, 0, end.stdout)
        lines = (self.folder / "trainings.txt").read_text().splitlines()
        trainings = {hook: [line for line in lines if f"--hook={hook} " in line and "--steps=" in line]
                     for hook in ("none", "bf16_compress", "int8")}
        for hook, lines_of_hook in trainings.items():
            self.assertEqual(len(lines_of_hook), 1, f"{hook}: {lines}")
        return end.stdout, {hook: lines_of_hook[0] for hook, lines_of_hook in trainings.items()}

    def test_without_network_namespaces_it_prints_why_and_trains(self):
        output, trainings = self.run_quickstart(FORBIDDEN)
        self.assertIn(NO_NETWORK, output)
        self.assertEqual([line for line in output.splitlines() if "cannot get a private network" in line], [REASON])
        self.assertIn("== result: 400 steps over one machine's memory, which is faster than a network", output)
        for hook, training in trainings.items():
            self.assertTrue(training.endswith("[no network]"), training)
            self.assertEqual("--node_size=1" in training, hook == "int8", training)

    def test_with_network_namespaces_the_network_is_simulated(self):
        if not can_simulate():
            self.skipTest("this machine cannot have a simulated network")
        output, trainings = self.run_quickstart([])
        self.assertNotIn(NO_NETWORK, output)
        self.assertIn("== result: 400 steps over a simulated network of 100 Mbit/s", output)
        for training in trainings.values():
            self.assertTrue(training.endswith("[0.1 Gbit/s]"), training)
            self.assertNotIn("--node_size", training)


if __name__ == "__main__":
    narrowcast_run = str(pathlib.Path(sys.argv.pop(1)).resolve())
    if not can_forbid():
        print("skipped: no user namespace, in which a test could forbid network namespaces", file=sys.stderr)
        sys.exit(SKIPPED)
    unittest.main()

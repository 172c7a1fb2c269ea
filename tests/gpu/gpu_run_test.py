#!/usr/bin/env python3
"""Tests tests/gpu/run on a machine without a GPU: its steps with fake programs, its phases with fake suites, and a pack
up to the point where a GPU is needed."""
import contextlib
import importlib.machinery
import importlib.util
import io
import json
import os
import pathlib
import stat
import subprocess
import sys
import tarfile
import tempfile
import time
import unittest
import unittest.mock

import packed
import plan
import steps

HERE = pathlib.Path(__file__).resolve().parent
LOADER = importlib.machinery.SourceFileLoader("pack", str(HERE / "pack"))
pack = importlib.util.module_from_spec(importlib.util.spec_from_loader("pack", LOADER))
LOADER.exec_module(pack)

REPORT = """<testsuites><testsuite><testcase name="a"/>{}</testsuite></testsuites>"""
SKIPPED = """<testcase name="b"><skipped message="devices.h:40&#x0A;no second GPU"/></testcase>"""


class InAFolder(unittest.TestCase):
    def setUp(self):
        folder = tempfile.TemporaryDirectory()
        self.addCleanup(folder.cleanup)
        self.folder = pathlib.Path(folder.name)

    def program(self, name, script):
        path = self.folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text("#!/bin/sh\n" + script)
        path.chmod(path.stat().st_mode | stat.S_IXUSR)
        return str(path)


class Steps(InAFolder):
    def run_one(self, script, limit=20, has_cases=True, deadline=60):
        step = steps.Step("a step", [self.program("step", script)], limit, has_cases=has_cases)
        return steps.run_step(step, self.folder, time.monotonic() + deadline)

    def report(self, text):
        return f"echo '{text}' > ${{GTEST_OUTPUT#xml:}}\n"

    def test_a_step_with_cases_that_ran_has_passed(self):
        outcome = self.run_one(self.report(REPORT.format(SKIPPED)))
        self.assertEqual((outcome.verdict, outcome.why), (steps.PASSED, "1 cases, 1 skipped"))

    def test_a_step_that_skipped_everything_says_why(self):
        outcome = self.run_one(self.report(f"<testsuites>{SKIPPED}</testsuites>"))
        self.assertEqual((outcome.verdict, outcome.why), (steps.SKIPPED, "no second GPU"))

    def test_a_step_without_cases_or_without_their_report_has_failed(self):
        self.assertEqual(self.run_one(self.report("<testsuites/>")).why, "no case has such a name")
        os.remove(self.folder / "a_step.xml")
        self.assertEqual(self.run_one("true").why, "no report of its cases")
        self.assertEqual(self.run_one("true", has_cases=False).verdict, steps.PASSED)

    def test_exit_codes_and_signals_are_failures_whatever_the_report_says(self):
        self.assertEqual(self.run_one(self.report(REPORT.format("")) + "exit 9").why, "exit code 9")
        self.assertEqual(self.run_one("kill -ABRT $$").why, "signal 6")
        missing = steps.run_step(steps.Step("gone", ["/no/such"], 5), self.folder, time.monotonic() + 5)
        self.assertEqual((missing.verdict, missing.why), (steps.FAILED, "/no/such: No such file or directory"))

    def test_a_step_and_its_children_end_with_its_time(self):
        outcome = self.run_one(f"sleep 1000 & echo $! > {self.folder}/child; wait", limit=1)
        self.assertEqual((outcome.verdict, outcome.why), (steps.FAILED, "ended after its 1 s"))
        child = pathlib.Path("/proc", (self.folder / "child").read_text().strip(), "stat")
        for _ in range(1000):  # The process that adopted it must notice its end.
            if not child.exists() or child.read_text().split()[2] == "Z":
                return
            time.sleep(0.01)
        self.fail("the child lives")

    def test_a_step_that_is_ended_says_how_far_it_came(self):
        outcome = self.run_one("echo '[       OK ] A.B (1 ms)'; echo '[ RUN      ] A.C'; sleep 1000", limit=1)
        self.assertEqual(outcome.why, "ended after its 1 s, 1 cases passed")

    def test_no_step_outlasts_its_phase(self):
        self.assertEqual(self.run_one("sleep 1000", limit=500, deadline=1.5).verdict, steps.FAILED)
        self.assertEqual(self.run_one("true", deadline=0.5).why, "not run: no time was left")

    def test_steps_run_at_a_time_and_those_that_measure_alone_after_them(self):
        def meets(name, other):
            return self.program(name, f"""touch {self.folder}/{name}.here
while [ ! -e {self.folder}/{other}.here ]; do sleep 0.01; done
echo {name} >> {self.folder}/ended""")

        def says(name, **when):
            return steps.Step(name, [self.program(name, f"echo {name} >> {self.folder}/ended")], 20, has_cases=False, alone=True, **when)

        pair = [steps.Step(name, [meets(name, other)], 20, has_cases=False) for name, other in (("a", "b"), ("b", "a"))]
        with contextlib.redirect_stdout(io.StringIO()):
            self.assertTrue(steps.run_all([says("measures"), *pair, says("tests", first=True)], self.folder / "results", 60, jobs=2))
        ended = (self.folder / "ended").read_text().split()
        self.assertEqual((ended[0], ended[-1]), ("tests", "measures"))

    def test_all_steps_run_and_the_summary_comes_last(self):
        bad = steps.Step("bad one", [self.program("bad", "echo '[  FAILED  ] X'; exit 1")], 5)
        good = steps.Step("good", [self.program("good", "true")], 5, has_cases=False)
        printed = io.StringIO()
        with contextlib.redirect_stdout(printed):
            self.assertFalse(steps.run_all([bad, good], self.folder / "results", 60))
        summary = (self.folder / "results/summary.txt").read_text()
        self.assertRegex(summary, r"FAILED .*bad one: exit code 1\npassed .*good\n")
        self.assertIn(summary + "1 of 2 steps without failure", printed.getvalue())
        self.assertIn("[  FAILED  ] X", printed.getvalue())


def suite(name):
    return plan.Suite(name, "narrowcast_" + name.split(".")[0] + "_tests", f"*/{name.split('.')[1]}.*")


SUITES = [suite(name) for name in ("ops.WireOperators.Cuda", "ops.CudaBillions", "ops.CudaQuantizedAllReduce",
                                   "hooks.CudaConformanceOfTwo", "hooks.CudaConformanceOfFour",
                                   "programs.NarrowcastTrainCudaTest", "train.BatchFeedTest.Cuda")]


class Cases(InAFolder):
    def run_case(self, driver, **environment):
        """tests/gpu/case with a program that prints its arguments and ends with 5."""
        program = self.program("tests", 'echo "$@"; exit 5')
        environment = {**os.environ, "NARROWCAST_REQUIRE_GPU": "0", **environment}
        return subprocess.run([HERE / "case", driver, program, "--gtest_filter=A.B", "more"], capture_output=True, text=True,
                              check=False, env=environment)

    def test_without_a_driver_a_case_is_skipped_and_says_why(self):
        ended = self.run_case("/no/driver")
        self.assertEqual((ended.returncode, ended.stdout), (77, "no GPU: this machine has no /no/driver\n"))

    def test_without_a_driver_a_case_that_is_demanded_has_failed(self):
        ended = self.run_case("/no/driver", NARROWCAST_REQUIRE_GPU="1")
        self.assertEqual(ended.returncode, 1)
        self.assertIn("NARROWCAST_REQUIRE_GPU=1 demands a GPU: no GPU", ended.stderr)

    def test_with_a_driver_the_program_runs(self):
        ended = self.run_case("/dev/null")
        self.assertEqual((ended.returncode, ended.stdout), (5, "--gtest_filter=A.B more\n"))

    def test_the_cases_of_a_suite_are_one_process(self):
        def test(program, case):
            return {"name": "x", "command": ["case", "driver", f"/build/bin/narrowcast_{program}_tests", f"--gtest_filter={case}"]}

        suites = plan.suites_of([test("ops", "All/WireOperators.Round/fp32_cuda"), test("ops", "CudaBillions.Sums"),
                                 test("ops", "All/WireOperators.Round/int8_cuda"), {"name": "ddp.gpu_cases_not_built"},
                                 test("hooks", "Hooks/CudaConformanceOfTwo.Averages/int8")])
        self.assertEqual(suites, [
            plan.Suite("hooks.CudaConformanceOfTwo", "narrowcast_hooks_tests", "Hooks/CudaConformanceOfTwo.Averages/int8"),
            plan.Suite("ops.CudaBillions", "narrowcast_ops_tests", "CudaBillions.Sums"),
            plan.Suite("ops.WireOperators.Cuda", "narrowcast_ops_tests",
                       "All/WireOperators.Round/fp32_cuda:All/WireOperators.Round/int8_cuda")])


class Phases(unittest.TestCase):
    def test_every_suite_is_in_one_phase(self):
        steps_of_all = [step.name for phase in plan.PHASES for step in plan.steps_of(phase, SUITES, pathlib.Path("bin"))]
        for one in SUITES:
            self.assertEqual(steps_of_all.count(one.name), 1, one.name)

    def test_suites_demand_a_gpu_in_a_process_of_their_own(self):
        step = plan.steps_of("hooks", SUITES, pathlib.Path("bin"))[0]
        self.assertEqual(step.command, ["bin/narrowcast_ops_tests", "--gtest_filter=*/CudaQuantizedAllReduce.*"])
        self.assertEqual(step.environment, {"NARROWCAST_REQUIRE_GPU": "1"})

    def test_all_tools_but_the_one_that_cannot_see_our_kernels_alone(self):
        tools = plan.steps_of("sanitizers", SUITES, pathlib.Path("bin"))
        self.assertEqual([step.name for step in tools], ["memcheck", "racecheck", "synccheck", "initcheck"])
        self.assertEqual(["--kernel-name" in step.command for step in tools], [True, True, True, False])

    def test_tools_share_their_cases_out_over_the_steps_that_run_at_a_time(self):
        tools = plan.steps_of("sanitizers", SUITES, pathlib.Path("bin"), jobs=9)
        self.assertEqual([step.name for step in tools][:3], ["memcheck 1 of 2", "memcheck 2 of 2", "racecheck 1 of 2"])
        self.assertEqual(tools[1].environment["GTEST_TOTAL_SHARDS"] + tools[1].environment["GTEST_SHARD_INDEX"], "21")

    def test_suites_of_long_cases_are_parted_where_several_steps_run_at_a_time(self):
        names = [step.name for step in plan.steps_of("rest", SUITES, pathlib.Path("bin"), jobs=2)]
        self.assertEqual(names[:2], ["hooks.CudaConformanceOfFour 1 of 2", "hooks.CudaConformanceOfFour 2 of 2"])
        self.assertEqual(names[2], "train.BatchFeedTest.Cuda")

    def test_no_phase_s_limits_are_longer_than_it(self):
        self.assertLessEqual(len(plan.TOOLS) * plan.TOOL_SECONDS, plan.PHASE_SECONDS)
        self.assertLess(plan.PHASE_SECONDS, 10 * 60)


class Packs(InAFolder):
    """A pack with shell programs, which list their cases, and a folder that looks like LibTorch."""

    def setUp(self):
        super().setUp()
        (self.folder / "torch/lib").mkdir(parents=True)
        (self.folder / "torch/lib/libtorch_cuda.so").touch()
        (self.folder / "torch/version.py").write_text("__version__ = '2.11.0+cu130'\n")
        (self.folder / "nvidia/nccl/lib").mkdir(parents=True)
        self.list_cases = f'echo "$LD_LIBRARY_PATH" > {self.folder}/path; echo "All/WireOperators."; echo "  Round/fp32_cuda  # param"'
        self.program("pack/bin/narrowcast_ops_tests", self.list_cases)
        packed.Manifest(torch="2.11.0", built_at="/far/away", commit="c", architectures="sm_90",
                        programs=["narrowcast_ops_tests"], suites=[SUITES[0].__dict__]).write(self.folder / "pack")
        self.program("nvidia-smi", "exit 9")

    def run_phase(self, phase="operators", *flags):
        return subprocess.run([sys.executable, HERE / "run", f"--packed={self.folder}/pack", f"--phase={phase}",
                               f"--torch={self.folder}/torch", *flags], capture_output=True, text=True, check=False,
                              env=dict(os.environ, PATH=f"{self.folder}:{os.environ['PATH']}"))

    def expect_refused(self, text):
        ended = self.run_phase()
        self.assertEqual(ended.returncode, 2, ended)
        self.assertIn(text, ended.stderr)

    def test_every_phase_comes_as_far_as_the_gpu_that_is_missing(self):
        for phase in plan.PHASES:
            self.assertEqual(self.run_phase(phase).returncode, 3)

    def test_filters_are_read_as_googletest_reads_them(self):
        for suite_filter, fits in (("A.*:*/A.*", True), ("*.B/?_cuda", True), ("*-*_cuda", False), ("B.*", False)):
            self.assertEqual(packed.matches("All/A.B/1_cuda", suite_filter), fits, suite_filter)

    def test_libraries_are_found_in_the_pack_before_those_of_the_torch_package(self):
        self.run_phase()
        self.assertEqual((self.folder / "path").read_text().split(":")[:3],
                         [f"{self.folder}/pack/lib", f"{self.folder}/torch/lib", f"{self.folder}/nvidia/nccl/lib"])

    def test_a_pack_that_cannot_run_here_says_why(self):
        self.program("pack/bin/narrowcast_ops_tests", "echo libx.so: missing >&2; exit 127")
        self.expect_refused("narrowcast_ops_tests --gtest_list_tests: exit code 127: libx.so: missing")
        self.program("pack/bin/narrowcast_ops_tests", "echo Other.; echo '  Case'")
        self.expect_refused("has no case */WireOperators.* of ops.WireOperators.Cuda")
        (self.folder / "torch/version.py").write_text("__version__ = '2.12.0'\n")
        self.expect_refused("is of version 2.12.0, but the pack was built for 2.11.0")
        (self.folder / "torch/lib/libtorch_cuda.so").unlink()
        self.expect_refused("it is not a torch package with CUDA")
        (self.folder / "pack/manifest.json").write_text(json.dumps({}))
        self.expect_refused("is not a pack of tests/gpu/pack")

    def test_a_phase_or_a_step_that_there_is_not_is_refused(self):
        self.program("nvidia-smi", "echo GPU 0: made up")
        for phase, flag, text in (("operators,nonsense", "--jobs=1", "there is no phase 'nonsense'"),
                                  ("operators", "--only=nonsense", "no step has such a name; there are ops.WireOperators.Cuda"),
                                  ("operators", "--only=(", "is not a regular expression"),
                                  ("operators", "--seconds=0", "is not above 0")):
            ended = self.run_phase(phase, flag)
            self.assertEqual(ended.returncode, 2, ended)
            self.assertIn(text, ended.stderr)

    def test_with_a_gpu_the_phases_run_and_leave_their_results(self):
        self.program("nvidia-smi", "echo GPU 0: made up")
        self.program("pack/bin/narrowcast_ops_tests", self.list_cases + f"""
[ -z "$GTEST_OUTPUT" ] || echo '{REPORT.format("")}' > ${{GTEST_OUTPUT#xml:}}""")
        for name in plan.BENCHES:
            self.program("pack/bin/" + name, "sleep 1000")
        ended = self.run_phase("operators,benches", "--jobs=2", "--only=ops|cuda_wire", "--step_seconds=2")
        self.assertEqual(ended.returncode, 1, ended)
        summary = (self.folder / "pack/results/operators-benches/summary.txt").read_text()
        self.assertRegex(summary, "passed .*ops.WireOperators.Cuda: 1 cases\nFAILED .*narrowcast_cuda_wire_bench: ended after its 2 s\n$")


class Packing(InAFolder):
    def libraries_of(self, text):
        self.program("ldd", f"cat <<'END'\n{text}END\n")
        with unittest.mock.patch.dict(os.environ, PATH=f"{self.folder}:{os.environ['PATH']}"):
            return pack.loaded_libraries("program")

    def test_it_takes_the_systems_libraries_and_ours_but_not_those_of_every_machine_and_of_libtorch(self):
        text = """\tlinux-vdso.so.1 (0x00007ffd)
\tlibhwy.so.1 => /usr/lib/libhwy.so.1 (0x00007f)
\tlibnarrowcast_ops.so.0 => /tree/build/lib/libnarrowcast_ops.so.0 (0x00007f)
\tlibtorch_cuda.so => /home/torch/lib/libtorch_cuda.so (0x00007f)
\tlibcublas.so.13 => /home/nvidia/cu13/lib/libcublas.so.13 (0x00007f)
\tlibcuda.so.1 => not found
\tlibstdc++.so.6 => /lib/libstdc++.so.6 (0x00007f)
\tlibc.so.6 => /lib/libc.so.6 (0x00007f)
\t/lib64/ld-linux-x86-64.so.2 (0x00007f)
"""
        self.assertEqual(self.libraries_of(text), {"libhwy.so.1": "/usr/lib/libhwy.so.1",
                                                   "libnarrowcast_ops.so.0": "/tree/build/lib/libnarrowcast_ops.so.0"})
        with self.assertRaisesRegex(SystemExit, "program needs libhwy.so.1, which is not found"):
            self.libraries_of("\tlibhwy.so.1 => not found\n")

    def test_a_pack_that_is_too_large_is_refused(self):
        stage = self.folder / "stage"
        stage.mkdir()
        (stage / "bytes").write_bytes(os.urandom(10_000))
        output = self.folder / "pack.tar.gz"
        with unittest.mock.patch.object(pack, "MOST_BYTES", 9_000):
            with self.assertRaisesRegex(SystemExit, "more than"):
                pack.write_pack(stage, output)
        self.assertFalse(output.exists())
        pack.write_pack(stage, output)
        with tarfile.open(output) as tar:
            self.assertEqual(tar.getnames(), ["gpu-pack", "gpu-pack/bytes"])


if __name__ == "__main__":
    unittest.main()

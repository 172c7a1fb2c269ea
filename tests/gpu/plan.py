"""What runs on a machine with a GPU: which suites, under which tools, and in which phase.

The suites are the tests of ctest with the label "gpu" (cmake/NarrowcastTest.cmake). Each suite is a separate process.
"""
import dataclasses
import json
import re
import shutil
import subprocess

from steps import Step

PHASE_SECONDS = 9 * 60
SUITE_SECONDS = 240
LARGE_SECONDS = 120
TOOL_SECONDS = 130
BENCH_SECONDS = 60
FOUND_ERRORS = 9  # Exit code of compute-sanitizer if it found errors; GoogleTest's is 1.

BENCHES = ["narrowcast_cuda_wire_bench", "narrowcast_cuda_reference_bench"]

# A suite belongs to the first phase whose expression matches its name; "rest" has the remaining ones.
PHASE_OF_SUITE = [
    ("hooks", r"^ops\.Cuda(QuantizedAllReduce|AutoQuantize|DecodingWork|StreamLink)"),
    ("operators", r"^ops\."),
    ("rest", r"OfFour|OverNodes|Peers"),
    ("hooks", r"^(hooks|ddp|programs)\."),
]
PHASES = ["operators", "sanitizers", "hooks", "rest", "benches"]

# Suites whose cases take seconds each, and the number of processes to split them into if several run at a time.
PARTED = {"ops.CudaAffineCodec": 4, "ops.CudaHostileSlices": 4, "ops.CudaSliceCodec": 4, "hooks.CudaConformanceOfTwo": 4,
          "hooks.CudaConformanceOfFour": 4}

# Suites whose kernels run once more with synchronous launches, so that a failure is reported where it happened.
WAITED_FOR = r"^hooks\.(CudaConformanceOfTwo|CudaQuantizedAllReduceHook|CudaPowerSgd)$"

# Tools of compute-sanitizer. Under them everything takes ten to a hundred times as long, so they run few cases: any
# bytes, numbers, addresses and layouts. All except initcheck, which must know the writes of other kernels, check our
# kernels only.
TOOLS = ["memcheck", "racecheck", "synccheck", "initcheck"]
TOOL_CASES = ["*CudaHostileSlices.*AnyBytes*", "*CudaHostileSlices.*AnyAddress*", "*WireOperators.*_cuda",
              "*OnDevice.ReadsAnyLayout*/cuda", "*OnDevice.*UnalignedRows*/cuda", "*OnDevice.DequantizesAnyLayout/cuda"]


@dataclasses.dataclass
class Suite:
    """`filter` is a GoogleTest filter."""
    name: str
    program: str
    filter: str


def suite_of(program, case):
    """The name of a case's suite: ops.WireOperators.Cuda for All/WireOperators.Round/fp32_cuda of
    narrowcast_ops_tests."""
    words = case.split(".")[0].split("/")
    suite = next((word for word in words if "Cuda" in word), words[-1])
    return f"{program.removeprefix('narrowcast_').removesuffix('_tests')}.{suite}" + ("" if "Cuda" in suite else ".Cuda")


def suites_of(tests):
    """The suites of ctest's tests, each of which is a case."""
    filters = {}
    for test in tests:
        if "command" not in test:
            continue  # Its program is not linked.
        program, case = test["command"][-2].rsplit("/", 1)[-1], test["command"][-1].split("=", 1)[1]
        filters.setdefault((suite_of(program, case), program), []).append(case)
    return [Suite(name, program, ":".join(cases)) for (name, program), cases in sorted(filters.items())]


def gpu_suites(build):
    """The suites of a build folder whose programs are linked."""
    text = subprocess.run(["ctest", "--test-dir", str(build), "--show-only=json-v1", "-L", "^gpu$"], check=True,
                          capture_output=True, text=True).stdout
    return suites_of(json.loads(text)["tests"])


def phase_of(suite):
    return next((phase for phase, expression in PHASE_OF_SUITE if re.search(expression, suite.name)), "rest")


def limit_of(suite):
    return LARGE_SECONDS if "Billions" in suite.name else SUITE_SECONDS


def suite_step(suite, folder):
    return Step(suite.name, [str(folder / suite.program), f"--gtest_filter={suite.filter}"], limit_of(suite),
                {"NARROWCAST_REQUIRE_GPU": "1"})


def parted(step, parts):
    """Splits the step's cases into `parts` processes, which may run at the same time."""
    if parts == 1:
        return [step]
    return [dataclasses.replace(step, name=f"{step.name} {part + 1} of {parts}",
                                environment={**step.environment, "GTEST_TOTAL_SHARDS": str(parts), "GTEST_SHARD_INDEX": str(part)})
            for part in range(parts)]


def parts_of(suite, jobs):
    return min(jobs, PARTED.get(suite.name, 1))


def waiting_step(suite, folder):
    step = suite_step(suite, folder)
    step.name += ", each launch waited for"
    step.environment["CUDA_LAUNCH_BLOCKING"] = "1"
    return step


def tool_step(tool, suites, folder):
    """The step of a tool. Each tensor gets a separate allocation, so that accesses beside it are noticed."""
    chosen = [suite for suite in suites if phase_of(suite) == "operators"]
    sanitizer = shutil.which("compute-sanitizer") or "compute-sanitizer"
    ours = [] if tool == "initcheck" else ["--kernel-name", "kernel_substring=narrowcast"]
    command = [sanitizer, "--tool", tool, *ours, "--error-exitcode", str(FOUND_ERRORS), str(folder / chosen[0].program),
               "--gtest_filter=" + ":".join(TOOL_CASES)]
    environment = {"NARROWCAST_REQUIRE_GPU": "1", "PYTORCH_NO_CUDA_MEMORY_CACHING": "1"}
    return Step(tool, command, TOOL_SECONDS, environment)


def bench_step(name, folder):
    return Step(name, [str(folder / name)], BENCH_SECONDS, has_cases=False, alone=True)


def steps_of(phase, suites, folder, jobs=1):
    """The steps of a phase for `jobs` parallel jobs; `folder` has the programs."""
    if phase == "sanitizers":
        # With enough jobs, all of them run at the same time and may use the time of the whole phase.
        parts = max(1, jobs // len(TOOLS))
        limit = min(PHASE_SECONDS, TOOL_SECONDS * min(jobs, len(TOOLS)))
        return [dataclasses.replace(step, limit=limit) for tool in TOOLS
                for step in parted(tool_step(tool, suites, folder), parts)]
    if phase == "benches":
        return [bench_step(name, folder) for name in BENCHES]
    steps = [step for suite in suites if phase_of(suite) == phase for step in parted(suite_step(suite, folder), parts_of(suite, jobs))]
    if phase == "rest":
        steps += [step for suite in suites if re.search(WAITED_FOR, suite.name)
                  for step in parted(waiting_step(suite, folder), parts_of(suite, jobs))]
    return steps

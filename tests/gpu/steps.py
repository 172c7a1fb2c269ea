"""Steps of a test run: each is a program with a time limit, a log and, for a GoogleTest program, a JUnit file."""
import concurrent.futures
import dataclasses
import os
import pathlib
import re
import signal
import subprocess
import time
import xml.etree.ElementTree

PASSED = "passed"
SKIPPED = "skipped"
FAILED = "FAILED"
SHOWN_LINES = 20


@dataclasses.dataclass
class Step:
    """`limit`: seconds after which the program and its child processes are ended. `alone`: it needs the machine for
    itself, before all others if it is `first`, else after them."""
    name: str
    command: list
    limit: float
    environment: dict = dataclasses.field(default_factory=dict)
    has_cases: bool = True  # A GoogleTest program, which must write a JUnit file and run at least one case.
    alone: bool = False
    first: bool = False


@dataclasses.dataclass
class Outcome:
    """How a step ended, and the reason."""
    name: str
    verdict: str
    why: str
    seconds: float = 0.0


@dataclasses.dataclass
class Cases:
    """The contents of GoogleTest's JUnit file."""
    run: int
    skipped: int
    reason: str  # reason of the first skipped case


def read_cases(path):
    """None if the file is missing or incomplete."""
    try:
        cases = list(xml.etree.ElementTree.parse(path).getroot().iter("testcase"))
    except (OSError, xml.etree.ElementTree.ParseError):
        return None
    reasons = [case.find("skipped") for case in cases if case.find("skipped") is not None]
    # GoogleTest begins a message with the source location.
    text = (reasons[0].get("message") or reasons[0].text or "").strip().splitlines() if reasons else []
    return Cases(run=len(cases) - len(reasons), skipped=len(reasons), reason=text[-1] if text else "")


def judge(step, exit_code, cases):
    """The outcome of a program that was not ended by its limit."""
    if exit_code != 0:
        return Outcome(step.name, FAILED, f"exit code {exit_code}" if exit_code > 0 else f"signal {-exit_code}")
    if not step.has_cases:
        return Outcome(step.name, PASSED, "")
    if cases is None:
        return Outcome(step.name, FAILED, "no report of its cases")
    if cases.run == 0 and cases.skipped == 0:
        return Outcome(step.name, FAILED, "no case has such a name")
    if cases.run == 0:
        return Outcome(step.name, SKIPPED, cases.reason)
    return Outcome(step.name, PASSED, f"{cases.run} cases" + (f", {cases.skipped} skipped" if cases.skipped else ""))


def cases_passed(log):
    """The number of passed cases in a GoogleTest program's log, if the log contains it."""
    return sum(line.startswith("[       OK ]") for line in log.read_text(errors="replace").splitlines())


def end_group(process):
    """Ends a program that leads a process group, and its child processes."""
    os.killpg(process.pid, signal.SIGKILL)
    process.wait()


def file_name(name):
    """A step's name as a file name."""
    return re.sub(r"[^A-Za-z0-9._-]+", "_", name)


def run_step(step, results, deadline):
    """Runs a step, no longer than until `deadline` (time.monotonic), and leaves its log and JUnit file in `results`."""
    limit = min(step.limit, deadline - time.monotonic())
    if limit < 1:
        return Outcome(step.name, FAILED, "not run: no time was left")
    junit = results / (file_name(step.name) + ".xml")
    environment = dict(os.environ, **step.environment)
    if step.has_cases:
        environment["GTEST_OUTPUT"] = f"xml:{junit}"
    begin = time.monotonic()
    log_path = results / (file_name(step.name) + ".log")
    with open(log_path, "wb") as log:
        try:
            process = subprocess.Popen(step.command, stdin=subprocess.DEVNULL, stdout=log, stderr=subprocess.STDOUT,
                                       env=environment, start_new_session=True)
        except OSError as error:
            return Outcome(step.name, FAILED, f"{step.command[0]}: {error.strerror}")
        try:
            exit_code = process.wait(timeout=limit)
        except subprocess.TimeoutExpired:
            end_group(process)
            passed = cases_passed(log_path)
            return Outcome(step.name, FAILED, f"ended after its {limit:.0f} s" + (f", {passed} cases passed" if passed else ""),
                           limit)
    outcome = judge(step, exit_code, read_cases(junit) if step.has_cases else None)
    outcome.seconds = time.monotonic() - begin
    return outcome


def line_of(outcome):
    return f"{outcome.verdict:8}{outcome.seconds:7.1f} s  {outcome.name}" + (f": {outcome.why}" if outcome.why else "")


def what_failed(log):
    """The lines of a log that report failures, or else its last lines."""
    lines = log.read_text(errors="replace").splitlines() if log.exists() else []
    telling = [line for line in lines if re.search(r": Failure|^\[  FAILED  \]|C\+\+ exception|=========|FAIL:|rank \d+: ", line)]
    return telling[:SHOWN_LINES] if telling else lines[-SHOWN_LINES:]


def run_all(steps, results, limit, jobs=1):
    """Runs the steps in order, within `limit` seconds together: `jobs` at a time, except those marked `alone`. A failed
    step does not stop the others. Prints the failures and, last, a line for each step, which is also written to
    results/summary.txt. Returns whether none failed."""
    results.mkdir(parents=True, exist_ok=True)
    deadline = time.monotonic() + limit

    def run(step):
        if jobs > 1 and not step.alone:  # Busy-waiting threads of several programs would take many times as long.
            shared_out = {"OMP_NUM_THREADS": str(max(1, len(os.sched_getaffinity(0)) // jobs)), "OMP_WAIT_POLICY": "passive"}
            step.environment.update({name: value for name, value in shared_out.items() if name not in os.environ})
        print(f"== {step.name}\n", end="", flush=True)
        outcome = run_step(step, results, deadline)
        print(f"{line_of(outcome)}\n", end="", flush=True)
        return outcome

    outcomes = [run(step) for step in steps if step.first]
    with concurrent.futures.ThreadPoolExecutor(jobs) as pool:
        outcomes += pool.map(run, [step for step in steps if not step.alone])
    outcomes += [run(step) for step in steps if step.alone and not step.first]
    failed = [outcome for outcome in outcomes if outcome.verdict == FAILED]
    for outcome in failed:
        print(f"\n-- {outcome.name}: {outcome.why}")
        print("\n".join(what_failed(results / (file_name(outcome.name) + ".log"))))
    summary = "\n".join(map(line_of, outcomes)) + "\n"
    pathlib.Path(results / "summary.txt").write_text(summary)
    print(f"\n{summary}{len(outcomes) - len(failed)} of {len(outcomes)} steps without failure; logs in {results}")
    return not failed

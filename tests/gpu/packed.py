"""The pack of tests/gpu/pack, unpacked in any folder, and the LibTorch that it runs with."""
import dataclasses
import fnmatch
import importlib.util
import json
import os
import pathlib
import re
import subprocess

from plan import Suite

MANIFEST = "manifest.json"


class PackError(Exception):
    """A pack that cannot run here; the text gives the reason."""


@dataclasses.dataclass
class Manifest:
    """`torch`: the version of LibTorch that the programs were linked with, such as 2.11.0."""
    torch: str
    built_at: str
    commit: str
    architectures: str
    programs: list
    suites: list

    def write(self, folder):
        (folder / MANIFEST).write_text(json.dumps(dataclasses.asdict(self), indent=1) + "\n")


def read_manifest(folder):
    try:
        fields = json.loads((folder / MANIFEST).read_text())
        return Manifest(**{**fields, "suites": [Suite(**suite) for suite in fields["suites"]]})
    except (OSError, ValueError, TypeError, KeyError) as error:
        raise PackError(f"{folder} is not a pack of tests/gpu/pack: {error}") from error


def find_torch(named):
    """The folder of the torch package: `named`, or this Python's. Does not import it, which would take seconds."""
    if named:
        torch = named
    else:
        found = importlib.util.find_spec("torch")
        if found is None or not found.submodule_search_locations:
            raise PackError("this Python has no torch package; --torch=DIR names the folder of one")
        torch = pathlib.Path(found.submodule_search_locations[0])
    if not (torch / "lib/libtorch_cuda.so").exists():
        raise PackError(f"{torch} has no lib/libtorch_cuda.so: it is not a torch package with CUDA")
    return torch


def check_version(torch, manifest):
    try:
        version = re.search(r"__version__ = '(.*)'", (torch / "version.py").read_text())[1]
    except (OSError, TypeError) as error:
        raise PackError(f"{torch}/version.py does not say which version it is") from error
    if version.split("+")[0] != manifest.torch:
        raise PackError(f"{torch} is of version {version}, but the pack was built for {manifest.torch}")


def library_path(folder, torch):
    """LD_LIBRARY_PATH: the pack's own libraries, LibTorch's, NVIDIA's beside LibTorch, the toolkit's."""
    nvidia = sorted(str(path) for path in torch.absolute().parent.glob("nvidia/*/lib"))
    toolkit = os.environ.get("CUDA_PATH", "/usr/local/cuda") + "/lib64"
    return ":".join([str(folder / "lib"), str(torch.absolute() / "lib"), *nvidia, toolkit])


def matches(case, suite_filter):
    """Whether a case matches a filter, by GoogleTest's rules."""
    wanted, _, left_out = suite_filter.partition("-")
    fits = [any(fnmatch.fnmatchcase(case, pattern) for pattern in patterns.split(":")) for patterns in (wanted, left_out)]
    return fits[0] and not fits[1]


def listed_cases(text):
    """The full names in the output of --gtest_list_tests."""
    suite = ""
    for line in text.splitlines():
        name = line.split("#")[0].rstrip()
        if name.startswith("  "):
            yield suite + name.strip()
        else:
            suite = name


def check_programs(folder, manifest):
    """Checks that every program finds its libraries, and every suite its cases. Needs no GPU."""
    for program in manifest.programs:
        flag = "--gtest_list_tests" if program.endswith("_tests") else "--version"
        ended = subprocess.run([folder / "bin" / program, flag], capture_output=True, text=True, errors="replace", check=False)
        if ended.returncode != 0:
            raise PackError(f"{program} {flag}: exit code {ended.returncode}: {ended.stderr.strip()[-500:]}")
        cases = list(listed_cases(ended.stdout))
        for suite in manifest.suites:
            if suite.program == program and not any(matches(case, suite.filter) for case in cases):
                raise PackError(f"{program} has no case {suite.filter} of {suite.name}")

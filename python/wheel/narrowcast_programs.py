"""The programs of the wheel as console commands.

Each command replaces itself by the program that was built for the installed torch. A module beside the package, because
importing the package would import torch, which takes seconds.
"""
import importlib.util
import os
import pathlib
import runpy
import sys

_PROGRAMS = pathlib.Path(__file__).resolve().parent / "narrowcast" / "bin"


def _run(name: str) -> None:
    torch = importlib.util.find_spec("torch")
    if torch is None or torch.origin is None:
        sys.exit(f"{name}: needs the package torch, which is not installed")
    torch_folder = pathlib.Path(torch.origin).resolve().parent
    version = runpy.run_path(str(torch_folder / "version.py"))["__version__"]
    program = _PROGRAMS / f"torch{'.'.join(version.split('.')[:2])}" / name
    if not program.is_file():
        built = sorted(each.name.removeprefix("torch") for each in _PROGRAMS.glob("torch*"))
        sys.exit(f"{name}: narrowcast has programs for torch {' and '.join(built)}, but torch is {version}; "
                 "install one of these versions")
    # The program searches torch beside the package. It can be elsewhere, for example among the system's packages.
    if torch_folder != (_PROGRAMS.parents[1] / "torch").resolve():
        folders = [str(torch_folder / "lib"), *filter(None, [os.environ.get("LD_LIBRARY_PATH")])]
        os.environ["LD_LIBRARY_PATH"] = ":".join(folders)
    os.execv(program, [str(program), *sys.argv[1:]])


def bench() -> None:
    _run("narrowcast-bench")


def quantize() -> None:
    _run("narrowcast-quantize")


def run() -> None:
    _run("narrowcast-run")


def train() -> None:
    _run("narrowcast-train")

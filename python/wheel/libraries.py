"""Programs and libraries (ELF files): what they link, what a package must contain of it, and which systems can load them."""
import pathlib
import re
import subprocess

# Every Linux with glibc and the GPU's driver have them.
SYSTEM = {"ld-linux-x86-64.so.2", "libc.so.6", "libcuda.so.1", "libdl.so.2", "libgcc_s.so.1", "libm.so.6",
          "libpthread.so.0", "librt.so.1", "libstdc++.so.6", "libutil.so.1"}

# The folders of site-packages in which torch and the packages that it installs have libraries.
OF_TORCH = ("torch/lib", "nvidia/*/lib")

# The newest symbol versions of libstdc++ that systems with this minor version of glibc 2 have.
LIBSTDCXX = ((28, {"GLIBCXX": (3, 4, 25), "CXXABI": (1, 3, 11)}), (31, {"GLIBCXX": (3, 4, 28), "CXXABI": (1, 3, 12)}),
             (34, {"GLIBCXX": (3, 4, 29), "CXXABI": (1, 3, 13)}), (35, {"GLIBCXX": (3, 4, 30), "CXXABI": (1, 3, 13)}),
             (39, {"GLIBCXX": (3, 4, 33), "CXXABI": (1, 3, 15)}))


def _output(*command) -> str:
    return subprocess.run([str(each) for each in command], check=True, capture_output=True, text=True).stdout


def _headers(file: pathlib.Path) -> str:
    return _output("objdump", "-p", file)


def needed(file: pathlib.Path) -> list[str]:
    """The names of the libraries that the file links directly."""
    return re.findall(r"^\s+NEEDED\s+(\S+)$", _headers(file), re.MULTILINE)


def soname(file: pathlib.Path) -> str:
    return re.search(r"^\s+SONAME\s+(\S+)$", _headers(file), re.MULTILINE)[1]


def given_run_path(file: pathlib.Path) -> str:
    """The file's RUNPATH."""
    return re.search(r"^\s+RUNPATH\s+(\S+)$", _headers(file), re.MULTILINE)[1]


def folder_of_torch(name: str, site: pathlib.Path) -> str | None:
    """The folder, relative to site-packages, in which torch or a package that it installs has the library."""
    found = [each for pattern in OF_TORCH for each in site.glob(f"{pattern}/{name}")]
    return str(found[0].parent.relative_to(site)) if found else None


def outside(files: list[pathlib.Path], site: pathlib.Path) -> dict[str, pathlib.Path]:
    """The libraries that the files link, directly or not, and that neither the system nor torch has: path by name."""
    result: dict[str, pathlib.Path] = {}
    for file in files:
        paths = dict(re.findall(r"^\s*(\S+) => (/\S+)", _output("ldd", file), re.MULTILINE))
        waiting = needed(file)
        while waiting:
            name = waiting.pop()
            if name in result or name in SYSTEM or folder_of_torch(name, site):
                continue
            if name not in paths:
                raise FileNotFoundError(f"{file} links {name}, which is not found")
            result[name] = pathlib.Path(paths[name]).resolve()
            waiting += needed(result[name])
    return result


def run_path(file: pathlib.Path, own: list[str], site: pathlib.Path) -> str:
    """RUNPATH of a file of narrowcast/X/torchY: its `own` folders, then torch's folders that have what it links."""
    torch = {folder_of_torch(name, site) for name in needed(file)} - {None}
    return ":".join(own + [f"$ORIGIN/../../../{folder}" for folder in sorted(torch, reverse=True)])


def manylinux(files: list[pathlib.Path]) -> str:
    """The platform tag of the oldest systems that can load all the files."""
    newest = {"GLIBC": (2, 17), "GLIBCXX": (0,), "CXXABI": (0,)}
    for file in files:
        for library, version in re.findall(r" (GLIBC|GLIBCXX|CXXABI)_([\d.]+)$", _headers(file), re.MULTILINE):
            newest[library] = max(newest[library], tuple(map(int, version.split("."))))
    of_libstdcxx = [minor for minor, has in LIBSTDCXX if all(newest[each] <= has[each] for each in has)]
    if newest["GLIBC"][0] != 2 or not of_libstdcxx:
        raise ValueError(f"no manylinux tag is known for {newest}")
    return f"manylinux_2_{max(newest['GLIBC'][1], of_libstdcxx[0])}_x86_64"

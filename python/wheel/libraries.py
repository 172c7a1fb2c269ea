"""Programs and libraries (ELF files): what they link, what a package must contain of it, and which systems can load them."""
import pathlib
import re
import struct
import subprocess
import typing

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


# libstdc++ has two versions of condition_variable::wait, which do the same. The newer one, of GCC 12, may also throw when its
# thread is cancelled, and no thread here is. Files that are linked with GCC 12 or newer get the newer version.
_WAIT = "_ZNSt18condition_variable4waitERSt11unique_lockISt5mutexE"
_WAIT_VERSIONS = ("GLIBCXX_3.4.30", "GLIBCXX_3.4.11")


class _VersionNeed(typing.NamedTuple):
    offset: int  # In the file: the hash of the version's name, 8 bytes later the offset of the name among the strings.
    hash: int
    name: int


def _version_needs(data: bytes, library: str) -> dict[str, _VersionNeed]:
    """The versions of the library's symbols that an ELF file of 64 bits needs, by name."""
    section_table, section_size, sections = struct.unpack_from("<Q", data, 40)[0], *struct.unpack_from("<HH", data, 58)
    headers = [struct.unpack_from("<IIQQQQII", data, section_table + i * section_size) for i in range(sections)]
    needs = next((each for each in headers if each[1] == 0x6FFFFFFE), None)  # SHT_GNU_verneed
    if needs is None:
        return {}
    strings = headers[needs[6]][4]

    def text(place: int) -> str:
        return data[strings + place:data.index(b"\0", strings + place)].decode()

    found, entry, last = {}, needs[4], False
    while not last:
        _, count, name, first, step = struct.unpack_from("<HHIII", data, entry)
        version = entry + first
        for _ in range(count if text(name) == library else 0):
            hashed, _, _, version_name, next_version = struct.unpack_from("<IHHII", data, version)
            found[text(version_name)] = _VersionNeed(version, hashed, version_name)
            version += next_version
        entry, last = entry + step, step == 0
    return found


def use_older_wait(file: pathlib.Path):
    """Lets the loader bind condition_variable::wait to its older version, which systems with GCC 11's libstdc++ have. Changes
    nothing if the file needs the newer version for another symbol too, or not at all."""
    newer, older = _WAIT_VERSIONS
    data = bytearray(file.read_bytes())
    needs = _version_needs(data, "libstdc++.so.6")
    symbols = re.findall(rf"\b{re.escape(newer)}\)? +(\S+)$", _output("objdump", "-T", file), re.MULTILINE)
    if newer in needs and older in needs and set(symbols) == {_WAIT}:
        struct.pack_into("<I", data, needs[newer].offset, needs[older].hash)
        struct.pack_into("<I", data, needs[newer].offset + 8, needs[older].name)
        file.write_bytes(data)

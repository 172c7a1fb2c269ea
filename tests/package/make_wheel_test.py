#!/usr/bin/env python3
"""Tests of python/wheel that need neither a build nor torch."""
import ctypes
import email
import importlib.machinery
import importlib.util
import pathlib
import subprocess
import sys
import tempfile
import unittest
from unittest import mock

FOLDER = pathlib.Path(__file__).resolve().parents[2] / "python/wheel"
sys.path.insert(0, str(FOLDER))
sys.dont_write_bytecode = True

import libraries  # noqa: E402

_LOADER = importlib.machinery.SourceFileLoader("make_wheel", str(FOLDER / "make_wheel"))
_SPEC = importlib.util.spec_from_loader("make_wheel", _LOADER)
make_wheel = importlib.util.module_from_spec(_SPEC)
sys.modules["make_wheel"] = make_wheel
_LOADER.exec_module(make_wheel)


def headers(*, needed=(), versions=()):
    """What objdump -p prints of a file."""
    return "".join([*(f"  NEEDED               {name}\n" for name in needed), "\nVersion References:\n",
                    *(f"    0x09691974 0x00 03 {version}\n" for version in versions)])


class RequirementTest(unittest.TestCase):
    def test_exactly_the_minors_inside(self):
        self.assertEqual(make_wheel.requirement([(2, 11)]), "torch>=2.11,<2.12")
        self.assertEqual(make_wheel.requirement([(2, 11), (2, 12)]), "torch>=2.11,<2.13")
        self.assertEqual(make_wheel.requirement([(2, 11), (2, 13), (2, 15)]), "torch>=2.11,<2.16,!=2.12.*,!=2.14.*")

    def test_two_major_versions_are_an_error(self):
        with self.assertRaisesRegex(SystemExit, "torch 2 and 3"):
            make_wheel.requirement([(2, 15), (3, 0)])


class MetadataTest(unittest.TestCase):
    def test_pip_shows_what_it_is_and_whose(self):
        with tempfile.TemporaryDirectory() as work:
            folder = pathlib.Path(work)
            (folder / "licenses").mkdir()
            (folder / "licenses/LICENSE").touch()
            make_wheel.write_metadata(folder, "1.2.3", "A summary", "any", [make_wheel.Build(folder, folder, (2, 11))])
            metadata = email.message_from_string((folder / "METADATA").read_text())
        expected = {"Version": "1.2.3", "Summary": "A summary", "Author": "the narrowcast developers", "License-File": "LICENSE",
                    "License-Expression": "BSD-3-Clause AND Apache-2.0 AND BSD-2-Clause AND MIT", "Requires-Dist": "torch>=2.11,<2.12"}
        self.assertEqual({name: metadata[name] for name in expected}, expected)
        self.assertIn("Typing :: Typed", metadata.get_all("Classifier"))
        self.assertRegex(metadata.get_payload(), r'Data-parallel training .*\n\n(.*\n)*    narrowcast.register\(ddp, "int8"\)')


class BuildTest(unittest.TestCase):
    def build(self, name, code=0):
        with mock.patch.object(make_wheel.subprocess, "run", return_value=mock.Mock(returncode=code)) as run:
            folder = make_wheel.make_build(name)
        return folder.name, [" ".join(map(str, call.args[0])).rpartition("third_party/")[2] for call in run.call_args_list]

    def test_commands(self):
        self.assertEqual(self.build("2.15"), ("release-2.15", [
            "setup --wheel --cpu --libtorch=2.15", "cmake --preset release-2.15",
            "cmake --build --preset release-2.15 --target narrowcast"]))
        self.assertEqual(self.build("cuda")[1][0], "setup --wheel --cuda")

    def test_a_failed_command_is_an_error(self):
        with self.assertRaisesRegex(SystemExit, "setup --wheel: failed"):
            self.build("2.11", code=1)

    def test_the_wheel_is_made_of_the_new_builds(self):
        def read_build(folder):
            return make_wheel.Build(folder, folder, tuple(map(int, folder.name.split("."))))

        with mock.patch.multiple(make_wheel, make_build=pathlib.Path, read_build=read_build, make_wheel=mock.DEFAULT) as mocks, \
             mock.patch.object(make_wheel.packing, "tools"), mock.patch("builtins.print"):
            mocks["make_wheel"].return_value = pathlib.Path(__file__)
            with mock.patch.object(sys, "argv", ["make_wheel", "--build", "2.15", "2.11"]):
                make_wheel.main()
            self.assertEqual([build.name for build in mocks["make_wheel"].call_args.args[0]], ["torch2.11", "torch2.15"])


class ManylinuxTest(unittest.TestCase):
    def tag(self, *versions):
        with mock.patch.object(libraries, "_headers", lambda file: headers(versions=file)):
            return libraries.manylinux([versions[:1], versions[1:]])

    def test_the_newest_symbol_decides(self):
        self.assertEqual(self.tag("GLIBC_2.38", "GLIBC_2.4", "GLIBCXX_3.4.30"), "manylinux_2_38_x86_64")
        self.assertEqual(self.tag("GLIBC_2.9", "GLIBC_2.34", "GLIBCXX_3.4.9"), "manylinux_2_34_x86_64")

    def test_symbols_of_libstdcxx_count(self):
        self.assertEqual(self.tag("GLIBC_2.34", "GLIBCXX_3.4.30"), "manylinux_2_35_x86_64")
        self.assertEqual(self.tag("GLIBC_2.17", "CXXABI_1.3.13"), "manylinux_2_34_x86_64")

    def test_a_newer_libstdcxx_is_an_error(self):
        with self.assertRaisesRegex(ValueError, "no manylinux tag is known"):
            self.tag("GLIBC_2.34", "GLIBCXX_3.4.99")


# The thread of the function waits for another one.
WAITS = """
#include <condition_variable>
#include <mutex>
#include <thread>

extern "C" int waits() {
  std::mutex mutex;
  std::condition_variable changed;
  bool is_there = false;
  std::unique_lock<std::mutex> lock(mutex);
  std::thread other([&] {
    const std::lock_guard<std::mutex> other_lock(mutex);
    is_there = true;
    changed.notify_one();
  });
  while (!is_there) changed.wait(lock);
  lock.unlock();
  other.join();
  return 42;
}
"""
# Another symbol of GCC 12.
FAILS = WAITS + """
namespace std { void __glibcxx_assert_fail(const char*, int, const char*, const char*) noexcept; }
extern "C" void fails() { std::__glibcxx_assert_fail("", 0, "", ""); }
"""


class OlderWaitTest(unittest.TestCase):
    def setUp(self):
        folder = tempfile.TemporaryDirectory()
        self.addCleanup(folder.cleanup)
        self.folder = pathlib.Path(folder.name)

    def compiled(self, name, text):
        source, file = self.folder / f"{name}.cpp", self.folder / f"{name}.so"
        source.write_text(text)
        subprocess.run(["g++", "-shared", "-fPIC", "-Wl,-z,now", source, "-o", file], check=True)
        if "GLIBCXX_3.4.30" not in self.versions(file):
            self.skipTest("g++ is older than 12")
        return file

    def versions(self, file):
        return libraries._version_needs(file.read_bytes(), "libstdc++.so.6")

    def test_a_file_waits_with_the_libstdcxx_of_gcc_11(self):
        file = self.compiled("waits", WAITS)
        former = self.versions(file)
        libraries.use_older_wait(file)
        self.assertEqual(set(former) - set(self.versions(file)), {"GLIBCXX_3.4.30"})
        self.assertNotIn("GLIBCXX_3.4.30", subprocess.run(["objdump", "-pT", file], capture_output=True, text=True).stdout)
        self.assertEqual(ctypes.CDLL(str(file)).waits(), 42)

    def test_a_file_with_another_new_symbol_stays(self):
        file = self.compiled("fails", FAILS)
        former = file.read_bytes()
        libraries.use_older_wait(file)
        self.assertEqual(file.read_bytes(), former)


class LibrariesTest(unittest.TestCase):
    def setUp(self):
        self.folder = tempfile.TemporaryDirectory()
        self.addCleanup(self.folder.cleanup)
        self.site = pathlib.Path(self.folder.name)
        for name in ("torch/lib/libc10.so", "nvidia/cu13/lib/libcudart.so.13"):
            (self.site / name).parent.mkdir(parents=True)
            (self.site / name).touch()

    def test_run_path_has_the_folders_of_torch_that_the_file_needs(self):
        with mock.patch.object(libraries, "_headers", lambda file: headers(needed=file)):
            self.assertEqual(libraries.run_path(["libc10.so", "libc.so.6"], ["$ORIGIN"], self.site),
                             "$ORIGIN:$ORIGIN/../../../torch/lib")
            self.assertEqual(libraries.run_path(["libc10.so", "libcudart.so.13"], ["$ORIGIN"], self.site),
                             "$ORIGIN:$ORIGIN/../../../torch/lib:$ORIGIN/../../../nvidia/cu13/lib")

    def outside(self, links, found):
        with mock.patch.object(libraries, "_headers", lambda file: headers(needed=links.get(str(file), []))), \
             mock.patch.object(libraries, "_output", lambda command, file: found):
            return libraries.outside([pathlib.Path("program")], self.site)

    def test_libraries_of_libraries_are_outside(self):
        links = {"program": ["libc10.so", "libc.so.6", "liba.so.1"], "/usr/lib/liba.so.1": ["libb.so.2"]}
        found = "\tliba.so.1 => /usr/lib/liba.so.1 (0x1)\n\tlibb.so.2 => /usr/lib/libb.so.2 (0x2)\n"
        self.assertEqual(self.outside(links, found), {
            "liba.so.1": pathlib.Path("/usr/lib/liba.so.1"), "libb.so.2": pathlib.Path("/usr/lib/libb.so.2")})

    def test_a_missing_library_is_an_error(self):
        with self.assertRaisesRegex(FileNotFoundError, "program links liba.so.1, which is not found"):
            self.outside({"program": ["liba.so.1"]}, "\tliba.so.1 => not found\n")

    def test_the_linked_cuda_runtime_names_the_variant(self):
        with mock.patch.object(libraries, "_headers", lambda file: headers(needed=file)):
            self.assertEqual(make_wheel.variant([["libc10.so"]]), "")
            self.assertEqual(make_wheel.variant([["libc10.so"], ["libcudart.so.13"]]), "+cu13")
            with self.assertRaisesRegex(SystemExit, "CUDA 12 and 13"):
                make_wheel.variant([["libcudart.so.12"], ["libcudart.so.13"]])


if __name__ == "__main__":
    unittest.main()

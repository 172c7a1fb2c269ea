#!/usr/bin/env python3
"""Which LibTorch third_party/setup gets, and whether CMake then builds for CUDA, on machines with and without a GPU and a
CUDA toolkit. `nvidia-smi` and old toolkits are scripts of the test; nothing is downloaded."""
import os
import pathlib
import shutil
import subprocess
import tempfile
import unittest

ROOT = pathlib.Path(__file__).resolve().parents[2]
NVCC = shutil.which("nvcc") or shutil.which("/usr/local/cuda/bin/nvcc")
HAS_GPU = pathlib.Path("/dev/nvidiactl").exists()
CACHE = pathlib.Path(os.environ.get("XDG_CACHE_HOME") or pathlib.Path.home() / ".cache") / "narrowcast"

A_GPU = "echo 'GPU 0: NVIDIA H100 (UUID: GPU-0)'"
NO_DOWNLOAD = '[ "$3" = --version ]'  # pip is there, and fails when it is asked to download.


class Machine(unittest.TestCase):
    def setUp(self):
        folder = tempfile.TemporaryDirectory()
        self.addCleanup(folder.cleanup)
        self.folder = pathlib.Path(folder.name)
        (self.folder / "bin").mkdir()
        self.environment = {
            **{name: value for name, value in os.environ.items() if not name.startswith("CUDA")},
            "PATH": f"{self.folder / 'bin'}:{os.environ['PATH']}", "XDG_CACHE_HOME": str(self.folder / "cache")}

    def has(self, program, script):
        path = self.folder / "bin" / program
        path.write_text(f"#!/bin/sh\n{script}\n")
        path.chmod(0o755)
        return path

    def has_toolkit(self, version):
        path = self.has("nvcc-of-the-test", f"echo 'Cuda compilation tools, release {version}, V{version}.1'")
        self.environment["CUDACXX"] = str(path)

    def run_program(self, *command):
        return subprocess.run([str(word) for word in command], env=self.environment, capture_output=True, text=True)

    def list_that_setup_gets(self, *flags):
        self.has("python3", NO_DOWNLOAD)
        done = self.run_program(ROOT / "third_party/setup", *flags)
        self.assertEqual(done.returncode, 1, done)
        self.assertIn("cannot download the packages of third_party/", done.stderr)
        return done.stderr.split("cannot download the packages of third_party/")[1].split()[0]


class Setup(Machine):
    @unittest.skipIf(HAS_GPU, "this machine has a GPU")
    def test_without_a_gpu_it_gets_no_cuda(self):
        self.has_toolkit("13.0")
        self.assertEqual(self.list_that_setup_gets(), "libtorch-2.11-cpu.txt")

    def test_with_a_gpu_and_a_toolkit_it_gets_cuda(self):
        self.has("nvidia-smi", A_GPU)
        self.has_toolkit("13.0")
        self.assertEqual(self.list_that_setup_gets(), "libtorch-2.11-cuda.txt")
        self.assertEqual(self.list_that_setup_gets("--libtorch=2.15"), "libtorch-2.15-cuda.txt")

    def test_with_a_gpu_and_an_old_toolkit_it_gets_no_cuda(self):
        self.has("nvidia-smi", A_GPU)
        for version in ("12.9", "9.2"):
            self.has_toolkit(version)
            self.assertEqual(self.list_that_setup_gets(), "libtorch-2.11-cpu.txt")

    def test_newer_toolkits_are_newer(self):
        self.has("nvidia-smi", A_GPU)
        for version in ("13.1", "13.10", "14.0"):
            self.has_toolkit(version)
            self.assertEqual(self.list_that_setup_gets(), "libtorch-2.11-cuda.txt")

    def test_flags_decide_where_they_are_given(self):
        self.has("nvidia-smi", A_GPU)
        self.has_toolkit("13.0")
        self.assertEqual(self.list_that_setup_gets("--cpu"), "libtorch-2.11-cpu.txt")
        self.has_toolkit("9.0")
        self.assertEqual(self.list_that_setup_gets("--cuda"), "libtorch-2.11-cuda.txt")

    def test_a_driver_without_a_gpu_is_no_gpu(self):
        if HAS_GPU:
            self.skipTest("this machine has a GPU")
        self.has("nvidia-smi", "echo 'No devices were found'; exit 6")
        self.has_toolkit("13.0")
        self.assertEqual(self.list_that_setup_gets(), "libtorch-2.11-cpu.txt")


class Configure(Machine):
    """CMake after set-up, in the default way (NARROWCAST_CUDA=AUTO)."""

    def cuda_build(self):
        done = self.run_program("cmake", "-S", ROOT, "-B", self.folder / "build", "-G", "Ninja", "-DBUILD_TESTING=OFF")
        self.assertEqual(done.returncode, 0, done.stderr)
        return next(line for line in done.stdout.splitlines() if "narrowcast: CUDA build" in line)

    def has_libtorch(self, *variants):
        cache = self.folder / "cache/narrowcast"
        cache.mkdir(parents=True)
        for variant in variants:
            name = f"libtorch-2.11.0-{variant}"
            if not (CACHE / name).exists():
                self.skipTest(f"{CACHE / name} does not exist: see third_party/setup")
            (cache / name).symlink_to(CACHE / name)

    @unittest.skipUnless(NVCC, "no CUDA toolkit on this machine")
    def test_a_gpu_and_a_toolkit_make_a_cuda_build(self):
        self.has("nvidia-smi", A_GPU)
        self.has_libtorch("cuda")
        self.assertRegex(self.cuda_build(), r"CUDA build ON \(an NVIDIA GPU and CUDA toolkit")

    def test_without_a_libtorch_for_cuda_it_is_a_cpu_build_that_says_so(self):
        self.has("nvidia-smi", A_GPU)
        self.has_toolkit("13.0")
        self.has_libtorch("cpu")
        self.assertRegex(self.cuda_build(), "CUDA build OFF .*libtorch_cuda.so: third_party/setup --cuda gets it")

    def test_with_an_old_toolkit_it_is_a_cpu_build_that_says_so(self):
        self.has("nvidia-smi", A_GPU)
        self.has_toolkit("12.4")
        self.has_libtorch("cpu")
        self.assertRegex(self.cuda_build(), "CUDA build OFF .* is 12.4, and must be 13.0 or newer")


if __name__ == "__main__":
    unittest.main()

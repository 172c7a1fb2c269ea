"""quantize_per_channel, on two processes, equals PyTorch's own quantization_perchannel_hook for any bucket_size."""
import json
import os
import struct
import subprocess
import tempfile
import unittest
import warnings

import torch
import torch.distributed as dist
from torch.distributed.algorithms.ddp_comm_hooks import quantization_hooks as upstream

from support.exact import ExactTestCase
from support.ranks import run_on_ranks
from support.upstream import running_on_gloo

warnings.filterwarnings("ignore", category=UserWarning, module="torch.ao.quantization")
warnings.filterwarnings("ignore", message="torch.ao.quantization is deprecated")
WORLD = 2
SIZES = (1, 7, 128, 512, 799, 800, 1000)  # The reference task's one bucket has 800 elements.


class Bucket:
    """The part of dist.GradBucket that the hook uses; Python cannot construct one."""

    def __init__(self, buffer):
        self._buffer = buffer

    def buffer(self):
        return self._buffer


def upstream_mean(bucket, bucket_size):
    with running_on_gloo():
        return upstream.quantization_perchannel_hook(None, Bucket(bucket), bucket_size).wait()


def read_gradient(folder, hook, rank):
    """The only tensor, float32, of a rank's final gradients in narrowcast-train."""
    with open(os.path.join(folder, f"{hook}.rank{rank}.safetensors"), "rb") as file:
        header = json.loads(file.read(struct.unpack("<Q", file.read(8))[0]))
        data = bytearray(file.read())
    (entry,) = [value for name, value in header.items() if name != "__metadata__"]
    begin, end = entry["data_offsets"]
    return torch.frombuffer(data[begin:end], dtype=torch.float32)


def dump_gradients(folder, hook, *flags):
    """Makes two ranks of narrowcast-train write their final gradients of the reference task."""
    subprocess.run([os.environ["NARROWCAST_RUN"], f"--nproc_per_node={WORLD}", os.environ["NARROWCAST_TRAIN"],
                    "--model=ddp_comm_hook_task", "--verify_gradients", f"--hook={hook}",
                    f"--dump_gradients={folder}", *flags], check=True, capture_output=True)


class OnEachRank(ExactTestCase):
    """The test on one rank; not a test by itself."""

    def __init__(self, folder):
        super().__init__()
        self.folder = folder

    def runTest(self):
        rank = dist.get_rank()
        own = read_gradient(self.folder, "noop", rank)
        for size in SIZES:
            with self.subTest(bucket_size=size):
                expected = upstream_mean(own, size)
                mean = read_gradient(os.path.join(self.folder, str(size)), "quantize_per_channel", rank)
                self.assert_same(mean, expected)


class PerChannelHook(unittest.TestCase):
    def test_bits_of_every_bucket_size_on_two_ranks(self):
        with tempfile.TemporaryDirectory() as folder:
            dump_gradients(folder, "noop")
            for size in SIZES:
                dump_gradients(os.path.join(folder, str(size)), "quantize_per_channel", f"--channel_size={size}")
            self.assertEqual(run_on_ranks(WORLD, OnEachRank(folder)), [0] * WORLD)


def load_tests(loader, _tests, _pattern):
    return loader.loadTestsFromTestCase(PerChannelHook)


if __name__ == "__main__":
    unittest.main()

"""quantize_per_channel, on two processes, equals PyTorch's own quantization_perchannel_hook for any bucket_size."""
import os
import tempfile
import unittest
import warnings

import torch
import torch.distributed as dist
from torch.distributed.algorithms.ddp_comm_hooks import quantization_hooks as upstream

from support.dumped_gradients import dump_gradients, read_gradient
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


class OnEachRank(ExactTestCase):
    """The test on one rank; not a test by itself."""

    def __init__(self, folder):
        super().__init__()
        self.folder = folder

    def runTest(self):
        rank = dist.get_rank()
        own = read_gradient(self.folder, "noop", rank).flatten()
        for size in SIZES:
            with self.subTest(bucket_size=size):
                expected = upstream_mean(own, size)
                mean = read_gradient(os.path.join(self.folder, str(size)), "quantize_per_channel", rank).flatten()
                self.assert_same(mean, expected)


class PerChannelHook(unittest.TestCase):
    def test_bits_of_every_bucket_size_on_two_ranks(self):
        with tempfile.TemporaryDirectory() as folder:
            dump_gradients(WORLD, folder, "--hook=noop")
            for size in SIZES:
                dump_gradients(WORLD, os.path.join(folder, str(size)), "--hook=quantize_per_channel", f"--channel_size={size}")
            self.assertEqual(run_on_ranks(WORLD, OnEachRank(folder)), [0] * WORLD)


def load_tests(loader, _tests, _pattern):
    return loader.loadTestsFromTestCase(PerChannelHook)


if __name__ == "__main__":
    unittest.main()

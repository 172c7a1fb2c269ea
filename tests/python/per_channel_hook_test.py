"""quantize_per_channel, in two processes, equals PyTorch's own quantization_perchannel_hook for any bucket_size."""
import json
import os
import struct
import subprocess
import tempfile
import unittest
import warnings

import torch
import torch.distributed as dist
from torch.distributed.algorithms.ddp_comm_hooks.quantization_hooks import quantization_perchannel_hook

from support.exact import ExactTestCase

warnings.filterwarnings("ignore", category=UserWarning, module="torch.ao.quantization")
warnings.filterwarnings("ignore", message="torch.ao.quantization is deprecated")
RANKS = 2


class Bucket:
    """What the hook uses of a dist.GradBucket, which cannot be made in Python."""

    def __init__(self, buffer):
        self._buffer = buffer

    def buffer(self):
        return self._buffer


def read_gradient(path):
    """The one tensor, float32, of a safetensors file."""
    with open(path, "rb") as file:
        header = json.loads(file.read(struct.unpack("<Q", file.read(8))[0]))
        data = bytearray(file.read())
    (entry,) = [value for name, value in header.items() if name != "__metadata__"]
    begin, end = entry["data_offsets"]
    return torch.frombuffer(data[begin:end], dtype=torch.float32)


def gradients(hook, *flags):
    """What each of two ranks of narrowcast-train ends the reference task with."""
    with tempfile.TemporaryDirectory() as folder:
        subprocess.run([os.environ["NARROWCAST_RUN"], f"--nproc_per_node={RANKS}", os.environ["NARROWCAST_TRAIN"],
                        "--model=ddp_comm_hook_task", "--verify_gradients", f"--hook={hook}",
                        f"--dump_gradients={folder}", *flags], check=True, capture_output=True)
        return [read_gradient(f"{folder}/{hook}.rank{rank}.safetensors") for rank in range(RANKS)]


class PerChannelHook(ExactTestCase):
    @classmethod
    def setUpClass(cls):
        dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)

    @classmethod
    def tearDownClass(cls):
        dist.destroy_process_group()

    def test_bits_of_every_bucket_size(self):
        own = gradients("noop")
        self.assertFalse(torch.equal(*own))
        for size in (1, 7, 128, 512, 799, 800, 1000):
            with self.subTest(bucket_size=size):
                # Alone, a rank gets what the others decode of it; the hook adds that up in the order of ranks.
                decoded = [quantization_perchannel_hook(None, Bucket(x), size).wait() for x in own]
                expected = (torch.zeros(800) + decoded[0] + decoded[1]) / RANKS
                for mean in gradients("quantize_per_channel", f"--channel_size={size}"):
                    self.assert_same(mean, expected)


if __name__ == "__main__":
    unittest.main()

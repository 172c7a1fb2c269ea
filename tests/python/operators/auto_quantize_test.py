"""The collective operators on two processes equal PyTorch's own auto_quantize, except for NaN."""
import unittest

import torch
import torch.distributed as dist
from torch.distributed.algorithms._quantization import quantization as upstream

from support.exact import ExactTestCase, hostile_numbers, ops, random_bits
from support.ranks import run_on_ranks

WORLD = 2
GROUP = "0"  # The name under which PyTorch registers the default group.
ROWS = 6
UPSTREAM_TYPE = {"fp16": upstream.DQuantType.FP16, "bfp16": upstream.DQuantType.BFP16}


def input_of(rank):
    """A matrix that any rank can compute: normal and hostile numbers, and random bit patterns except NaN."""
    generator = torch.Generator().manual_seed(rank)
    numbers = torch.cat([torch.randn(2000, generator=generator), hostile_numbers(torch.float32),
                         random_bits(torch.float32, 20_000, generator)])
    numbers = numbers[~numbers.isnan()]
    return numbers[:numbers.numel() // ROWS * ROWS].view(ROWS, -1)[:, :3500].contiguous()


class OnEachRank(ExactTestCase):
    """The test on one rank; not a test by itself."""

    def runTest(self):
        for qtype, upstream_type in UPSTREAM_TYPE.items():
            with self.subTest(qtype=qtype):
                self.check_all_gather(qtype, upstream_type)
                self.check_all_to_all(qtype, upstream_type)
                self.check_all_to_all_single(qtype, upstream_type)

    def check_all_gather(self, qtype, upstream_type):
        x = input_of(dist.get_rank())
        expected = [torch.zeros_like(x) for _ in range(WORLD)]
        upstream.auto_quantize(dist.all_gather, upstream_type)(expected, x, group=dist.group.WORLD)
        outputs = [torch.zeros_like(x) for _ in range(WORLD)]
        ops.auto_quantize_all_gather(outputs, x, qtype, GROUP)
        self.assert_same(outputs, expected)

    # Gloo has no all_to_all on lists, so upstream's cannot run. Compares with upstream's encoding and decoding of each
    # rank's input.
    def check_all_to_all(self, qtype, upstream_type):
        rank = dist.get_rank()
        parts = [list(input_of(sender).split([2, 4])) for sender in range(WORLD)]
        sent = [upstream._quantize_tensor(parts[sender][rank].contiguous(), upstream_type) for sender in range(WORLD)]
        outputs = [torch.zeros_like(parts[sender][rank]) for sender in range(WORLD)]
        ops.auto_quantize_all_to_all(outputs, parts[rank], qtype, GROUP)
        self.assert_same(outputs, [upstream._dequantize_tensor(q, upstream_type) for q in sent])

    def check_all_to_all_single(self, qtype, upstream_type):
        x = input_of(dist.get_rank())
        uneven = {0: ([1, 3], [1, 5]), 1: ([5, 3], [3, 3])}[dist.get_rank()]  # Rows from, and to, each rank.
        for out_splits, in_splits in ((None, None), uneven):
            rows = ROWS if out_splits is None else sum(out_splits)
            expected = torch.zeros(rows, x.shape[1])
            collective = upstream.auto_quantize(dist.all_to_all_single, upstream_type)
            collective(expected, x, out_splits=out_splits, in_splits=in_splits, group=dist.group.WORLD)
            output = torch.zeros(rows, x.shape[1])
            ops.auto_quantize_all_to_all_single(output, x, qtype, GROUP, out_splits, in_splits)
            self.assert_same(output, expected)


class AutoQuantize(unittest.TestCase):
    def test_on_two_processes_as_upstream(self):
        self.assertEqual(run_on_ranks(WORLD, OnEachRank()), [0] * WORLD)


def load_tests(loader, _tests, _pattern):
    return loader.loadTestsFromTestCase(AutoQuantize)


if __name__ == "__main__":
    unittest.main()

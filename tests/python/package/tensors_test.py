"""narrowcast.all_reduce: its levels, with the ranks of one machine."""
import unittest

import torch
import torch.distributed as dist

import narrowcast
from support.gradients import gathered
from support.ranks import run_on_ranks


class OnEachRank(unittest.TestCase):
    """The program of one rank; not a test by itself."""

    def runTest(self):
        torch.manual_seed(dist.get_rank())
        own = torch.randn(50, 100)
        exact = gathered(own).float().sum(0).div(dist.get_world_size()).view_as(own)
        for levels in ({}, {"levels": "auto"}, {"levels": "two"}):
            x = own.clone()
            self.assertIs(narrowcast.all_reduce(x, "int4_b32", **levels), x)
            self.assertTrue(x.equal(exact), levels)
        rounded = narrowcast.all_reduce(own.clone(), "int4_b32", levels="one")
        self.assertFalse(rounded.equal(exact))
        self.assertLess((rounded - exact).abs().max(), own.abs().max())
        for of_rank in gathered(rounded):
            self.assertTrue(of_rank.equal(rounded.flatten().double()))
        with self.assertRaisesRegex(ValueError, "levels differs between ranks: rank 0 has one, rank 1 has auto"):
            narrowcast.all_reduce(own.clone(), levels="one" if dist.get_rank() == 0 else "auto")
        with self.assertRaisesRegex(ValueError, "levels: must be auto, one or two, but is 'three'"):
            narrowcast.all_reduce(own.clone(), levels="three")
        alone = [dist.new_group([rank]) for rank in range(dist.get_world_size())][dist.get_rank()]
        with self.assertRaisesRegex(ValueError, "levels: two is impossible, because every node has one rank"):
            narrowcast.all_reduce(own.clone(), group=alone, levels="two")
        self.assertTrue(narrowcast.all_reduce(own.clone(), group=alone).equal(own))


class Tensors(unittest.TestCase):
    def test_all_reduce_takes_levels(self):
        self.assertEqual(run_on_ranks(2, OnEachRank()), [0, 0])


def load_tests(loader, _tests, _pattern):
    return loader.loadTestsFromTestCase(Tensors)


if __name__ == "__main__":
    unittest.main()

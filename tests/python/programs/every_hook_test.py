"""PyTorch's DistributedDataParallel with every hook of the package gives the bits of narrowcast's own in C++, for the same
gradients. Its one parameter is a bucket of its own, which has the same layout in both."""
import tempfile
import unittest

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel

import narrowcast
from support.dumped_gradients import dump_gradients, read_gradient
from support.exact import ExactTestCase
from support.ranks import run_on_ranks

# With --verify_gradients PowerSGD has all columns of the matrix and no residuals, so that it sends the mean.
EXACT_POWER_SGD = {"power_sgd_rank": 2**63 - 1, "power_sgd_start": 0, "power_sgd_error_feedback": False}
ANY_RATE = {"power_sgd_min_rate": 1e-9}
# On so slow a network auto chooses a format of 8 bits, whatever it measures.
AUTO = {"link_gbit": 1e-4, "link_us": 50}
FLAGS_OF_AUTO = ("--hook=auto", "--link_gbit=1e-4", "--link_us=50")
WITHOUT_NODES = ("allreduce", "bf16_compress", "fp16_compress", "noop", "post_local_sgd", "quantize_per_channel",
                 "quantize_per_tensor")


class Given(nn.Module):
    """Has a given gradient."""

    def __init__(self, gradient):
        super().__init__()
        self.weight = nn.Parameter(torch.zeros_like(gradient))
        self.gradient = gradient

    def forward(self):
        return (self.weight * self.gradient).sum()


def options_of(hook, ranks_per_node):
    options = {} if hook in WITHOUT_NODES else {"node_size": ranks_per_node}
    if "power_sgd" in hook:
        options |= EXACT_POWER_SGD | ({} if "batched" in hook else ANY_RATE)
    return options | (AUTO if hook == "auto" else {})


class OnEachRank(ExactTestCase):
    """The test on one rank; not a test by itself. results: the folder of the gradients, and names in it with hooks and ranks per
    node."""

    def __init__(self, folder, results=None):
        super().__init__()
        self.folder = folder
        self.results = results or {}

    def runTest(self):
        torch.set_num_threads(1)
        rank = dist.get_rank()
        own = read_gradient(self.folder, "noop", rank)
        for name, (hook, ranks_per_node) in self.results.items():
            with self.subTest(name=name):
                model = Given(own)
                ddp = DistributedDataParallel(model)
                narrowcast.register(ddp, hook, **options_of(hook, ranks_per_node))
                ddp().backward()
                self.assert_same(model.weight.grad, read_gradient(self.folder, name, rank))
                self.assertEqual(model.weight.grad.equal(own), hook == "noop")


class EveryHook(unittest.TestCase):
    def check(self, world_size, ranks_per_node):
        with tempfile.TemporaryDirectory() as folder:
            dump_gradients(world_size, folder)
            dump_gradients(world_size, folder, *FLAGS_OF_AUTO)
            results = {}
            for hook in narrowcast.hook_names()[1:]:  # "none" is not a hook.
                for each in ranks_per_node[:1] if hook in WITHOUT_NODES else ranks_per_node:
                    results[hook if each == 1 else f"{hook}.nodes_of_{each}"] = hook, each
            self.assertEqual(run_on_ranks(world_size, OnEachRank(folder, results)), [0] * world_size)

    def test_two_ranks(self):
        self.check(2, [1])

    def test_two_nodes_of_two_ranks(self):
        self.check(4, [1, 2])


def load_tests(loader, _tests, _pattern):
    return loader.loadTestsFromTestCase(EveryHook)


if __name__ == "__main__":
    unittest.main()

"""Several steps of an optimizer with every hook of the package, in PyTorch's DistributedDataParallel, give the gradients and
parameters of narrowcast's own in C++, bit for bit. The parameters have several buckets, and hooks keep a state between steps."""
import ctypes
import json
import os
import pathlib
import subprocess
import tempfile
import unittest

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel

import narrowcast
from support.exact import ExactTestCase
from support.ranks import run_on_ranks

# Each parameter fills whole blocks of every wire format, so that it has the same place in its bucket in both: C++ orders a bucket
# by blocks (trainer/ddp/reducer/block_alignment.h). Two matrices have the same shape, for PowerSGD in batches.
SIZES = [(16, 256), (256,), (64, 64), (64, 64), (512,), (8, 32, 3, 3)]
CASE = {"steps": 6, "bucket_cap_mb": .03, "learning_rate": .1, "momentum": .9, "sizes": SIZES}
WITHOUT_NODES = ("allreduce", "bf16_compress", "fp16_compress", "noop", "post_local_sgd", "quantize_per_channel",
                 "quantize_per_tensor")
# A given network is not measured: two measurements differ, and hooks choose their algorithm by it.
LINK = {"link_gbit": 1, "link_us": 50}
# On so slow a network auto chooses a format of 8 bits, whatever it measures.
SLOW_LINK = {"link_gbit": 1e-4, "link_us": 50}
MORE_OPTIONS = [("int8", {"error_feedback": True}), ("int4", {"stochastic_rounding": 7}), ("int8", {"exempt_one_dimensional": True}),
                ("var5", {"error_feedback": True, "stochastic_rounding": 3})]


def options_of(hook, ranks_per_node):
    """Options with which the hook does its own work within the steps."""
    options = {} if hook in WITHOUT_NODES else {"node_size": ranks_per_node}
    if "power_sgd" in hook:
        return options | {"power_sgd_start": 2}
    if hook == "post_local_sgd":
        return {"outer_warmup": 2, "local_group": 2}
    if hook in WITHOUT_NODES:
        return options
    return options | (SLOW_LINK if hook == "auto" else LINK)


def hooks_of(ranks_per_node):
    """All hooks with options: [name, options]."""
    result = []
    for size in ranks_per_node:
        hooks = [(hook, {}) for hook in narrowcast.hook_names()[1:]] + MORE_OPTIONS  # "none" is not a hook.
        result += [[hook, options_of(hook, size) | more] for hook, more in hooks
                   if size == ranks_per_node[0] or hook not in WITHOUT_NODES]
    return result


class GivenGradients(nn.Module):
    """Gets the gradients that are given to forward."""

    def __init__(self, values):
        super().__init__()
        self.weights = nn.ParameterList(value.clone() for value in values)

    def forward(self, gradients):
        total = torch.zeros(())
        for weight, gradient in zip(self.weights, gradients):
            total = total + (weight * gradient).sum()
        return total


class Reader:
    """Lists of tensors, one for each parameter, in a file of float32."""

    def __init__(self, path):
        self.numbers = torch.from_file(str(path), shared=False, size=os.path.getsize(path) // 4)
        self.next = 0

    def read(self):
        parts = [torch.Size(size).numel() for size in CASE["sizes"]]
        tensors = self.numbers[self.next:self.next + sum(parts)].split(parts)
        self.next += sum(parts)
        return [tensor.view(size) for tensor, size in zip(tensors, CASE["sizes"])]


class OnEachRank(ExactTestCase):
    """The test on one rank; not a test by itself. folder: the files of hook_steps.cpp."""

    def __init__(self, folder):
        super().__init__()
        self.folder = pathlib.Path(folder)

    def runTest(self):
        torch.set_num_threads(1)
        rank, world_size = dist.get_rank(), dist.get_world_size()
        numbers = Reader(self.folder / "numbers.bin")
        first = numbers.read()
        gradients = [[numbers.read() for _ in range(world_size)][rank] for _ in range(CASE["steps"])]
        trained = Reader(self.folder / "trained.bin")
        for hook, options in json.loads((self.folder / "case.json").read_text())["hooks"]:
            expected = [[(trained.read(), trained.read()) for _ in range(CASE["steps"])] for _ in range(world_size)][rank]
            with self.subTest(hook=hook, **options):
                self.check(hook, options, first, gradients, expected)

    def check(self, hook, options, first, gradients, expected):
        ddp = DistributedDataParallel(GivenGradients(first), bucket_cap_mb=CASE["bucket_cap_mb"])
        state = narrowcast.register(ddp, hook, **options)
        parameters = list(ddp.parameters())
        optimizer = torch.optim.SGD(parameters, lr=CASE["learning_rate"], momentum=CASE["momentum"], foreach=False)
        for step, (own, (means, after)) in enumerate(zip(gradients, expected)):
            optimizer.zero_grad()
            ddp(own).backward()
            optimizer.step()
            for index, parameter in enumerate(parameters):
                with self.subTest(step=step, parameter=index):
                    self.assert_same(parameter.grad, means[index])
                    self.assert_same(parameter, after[index])
        self.assertFalse(parameters[0].equal(first[0]), "nothing was trained")
        self.assertEqual(own[0].equal(means[0]), hook == "noop")
        self.assertEqual(state.steps, CASE["steps"])


class EveryHookSteps(unittest.TestCase):
    def check(self, world_size, ranks_per_node):
        torch.manual_seed(world_size)
        numbers = [torch.randn(size) for size in SIZES]
        for _ in range(CASE["steps"] * world_size):
            numbers += [torch.randn(size) * torch.randn(size).exp() for size in SIZES]
        with tempfile.TemporaryDirectory() as folder:
            case = CASE | {"world_size": world_size, "hooks": hooks_of(ranks_per_node)}
            pathlib.Path(folder, "case.json").write_text(json.dumps(case))
            with open(os.path.join(folder, "numbers.bin"), "wb") as file:
                for tensor in numbers:
                    file.write(ctypes.string_at(tensor.data_ptr(), tensor.nbytes))
            subprocess.run([os.environ["NARROWCAST_HOOK_STEPS"], folder], check=True)
            self.assertEqual(run_on_ranks(world_size, OnEachRank(folder)), [0] * world_size)

    def test_two_ranks(self):
        self.check(2, [1])

    def test_two_nodes_of_two_ranks(self):
        self.check(4, [1, 2])


def load_tests(loader, _tests, _pattern):
    return loader.loadTestsFromTestCase(EveryHookSteps)


if __name__ == "__main__":
    unittest.main()

"""torch.compile of a DistributedDataParallel with a hook."""
import os
import shutil
import tempfile
import unittest
from unittest import mock

import torch
from torch import nn
from torch.nn.parallel import DistributedDataParallel

import narrowcast
from support.gradients import RankTestCase, gathered, loss_of, own_gradients, tolerance
from support.ranks import run_on_ranks


class OnEachRank(RankTestCase):
    """The program of one rank."""

    def aot_eager(self):
        """PyTorch's operators: each mean has one rounding."""
        for gradient, own in self.gradients_of("aot_eager"):
            error = (gradient.double() - own.mean(0)).abs()
            self.assertLessEqual((error - tolerance(own, "fp32")).max(), 0)

    def inductor(self):
        """The generated code rounds in other places than PyTorch's operators."""
        with tempfile.TemporaryDirectory() as folder, mock.patch.dict(os.environ, TORCHINDUCTOR_CACHE_DIR=folder):
            for gradient, own in self.gradients_of("inductor"):
                self.assert_same(gathered(gradient), gradient.double().expand_as(own).contiguous())
                self.assertLess((gradient - own.mean(0)).norm() / own.mean(0).norm(), 1e-5)
                self.assertGreater((own[0] - own[1]).norm() / own.mean(0).norm(), 1e-2)

    def gradients_of(self, backend):
        """In each step, for each parameter: its gradient, and those that the ranks have without narrowcast."""
        model = nn.Sequential(nn.Linear(61, 160), nn.Tanh(), nn.Linear(160, 7))
        ddp = DistributedDataParallel(model, bucket_cap_mb=1)  # torch.compile takes no buckets that are smaller.
        hook = narrowcast.register(ddp, "fp32", levels="one")
        compiled = torch.compile(ddp, backend=backend)
        for step in range(2):
            before = hook.payload_bytes_sent
            compiled.zero_grad()
            loss_of(compiled, step).backward()
            self.assertGreater(hook.payload_bytes_sent, before)
            own = own_gradients(model, step)
            for name, each in model.named_parameters():
                yield each.grad.flatten(), gathered(own[name])


class CompiledHook(unittest.TestCase):
    def test_without_code(self):
        self.assertEqual(run_on_ranks(2, OnEachRank("aot_eager")), [0] * 2)

    @unittest.skipUnless(shutil.which("g++"), "the usual backend of torch.compile needs g++")
    def test_usual_backend(self):
        self.assertEqual(run_on_ranks(2, OnEachRank("inductor")), [0] * 2)


def load_tests(loader, _tests, _pattern):
    return loader.loadTestsFromTestCase(CompiledHook)


if __name__ == "__main__":
    unittest.main()

"""torch.compile of a DistributedDataParallel with a hook."""
import os
import shutil
import tempfile
import unittest
from unittest import mock

import torch
from torch import nn
from torch._dynamo import compiled_autograd
from torch.distributed.algorithms.ddp_comm_hooks import default_hooks as pytorch
from torch.nn.parallel import DistributedDataParallel

import narrowcast
from narrowcast.ddp_comm_hooks import default_hooks, quantization_hooks
from support.gradients import RankTestCase, gathered, loss_of, own_gradients, tolerance, wrapped
from support.ranks import run_on_ranks


NO_BUCKETS = 'optimize_ddp="python_reducer" gives hooks single gradients'
CHECKS = ("aot_eager", "compiled_before", "single_gradients")  # These need no compiler.


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

    def compiled_before(self):
        """A hook for what torch.compile returned. Names in its state are those of the module."""
        ddp = wrapped(nn.Sequential(nn.Linear(61, 160), nn.Tanh(), nn.Linear(160, 7)))
        compiled = torch.compile(ddp, backend="aot_eager")
        hook = narrowcast.register(compiled, "int8", error_feedback=True, levels="one")
        loss_of(compiled, 0).backward()
        names = [name for name, _ in ddp.module.named_parameters()]
        for model in (compiled, ddp, ddp.module, torch.compile(ddp.module)):
            self.assertLessEqual({f"residual.{name}" for name in names}, hook.state_dict(model)["tensors"].keys())

    def single_gradients(self):
        """In this mode hooks get single gradients. Elementwise hooks give PyTorch's bits, and all others an error."""
        with torch._dynamo.config.patch(optimize_ddp="python_reducer"):
            for name in ("fp16_compress_hook", "bf16_compress_hook"):
                ours, theirs = (self.with_compiled_backward(getattr(each, name)) for each in (default_hooks, pytorch))
                self.assert_same(ours, theirs)
                self.assert_same(*gathered(torch.cat([each.flatten() for each in ours])))
            with self.assertRaisesRegex(ValueError, NO_BUCKETS):
                narrowcast.register(wrapped(), "int8")
            with self.assertRaisesRegex(ValueError, NO_BUCKETS):
                self.with_compiled_backward(narrowcast.comm_hook, narrowcast.CommHook("int8"))
        gradient = torch.ones(3)
        for hook in (default_hooks.allreduce_hook, quantization_hooks.quantization_perchannel_hook,
                     default_hooks.fp16_compress_wrapper(default_hooks.fp16_compress_hook)):
            with self.assertRaisesRegex(ValueError, NO_BUCKETS):
                hook(None, (gradient, nn.Parameter(gradient)))

    def with_compiled_backward(self, hook, state=None):
        torch.manual_seed(0)
        model = nn.Sequential(nn.Linear(61, 16), nn.Tanh(), nn.Linear(16, 7))
        ddp = DistributedDataParallel(model)
        ddp.register_comm_hook(state, hook)
        loss = loss_of(torch.compile(ddp, backend="aot_eager"), 0)
        with compiled_autograd._enable(lambda graph: torch.compile(graph, backend="aot_eager")):
            loss.backward()
        return [each.grad for each in model.parameters()]

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
        self.assertEqual(run_on_ranks(2, OnEachRank(*CHECKS)), [0] * 2)

    @unittest.skipUnless(shutil.which("g++"), "the usual backend of torch.compile needs g++")
    def test_usual_backend(self):
        self.assertEqual(run_on_ranks(2, OnEachRank("inductor")), [0] * 2)


def load_tests(loader, _tests, _pattern):
    return loader.loadTestsFromTestCase(CompiledHook)


if __name__ == "__main__":
    unittest.main()

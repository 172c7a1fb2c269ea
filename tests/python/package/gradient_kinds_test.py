"""Sparse and complex gradients in every hook: means where PyTorch's hooks give them, else one error on all ranks."""
import unittest

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.algorithms.ddp_comm_hooks import default_hooks as of_pytorch
from torch.nn.parallel import DistributedDataParallel

import narrowcast
from narrowcast.ddp_comm_hooks import default_hooks
from narrowcast.ddp_comm_hooks.post_localSGD_hook import PostLocalSGDState, post_localSGD_hook
from support.gradients import RankTestCase
from support.ranks import run_on_ranks

STEPS = 3
DENSE_ONLY = "create the module with.* or use the hook allreduce or bf16_compress"
WIRE_FORMATS = ("quantized_allreduce", "int8", "int6", "int4", "fp8", "var6", "var5", "var4", "var3", "fp32")


class Sparse(nn.Module):
    """The gradient of the embedding is sparse, and has a row twice."""

    def __init__(self):
        super().__init__()
        self.embedding = nn.Embedding(10, 4, sparse=True)
        self.layer = nn.Linear(4, 3)

    def forward(self, step):
        return self.layer(self.embedding(torch.tensor([1 + dist.get_rank(), 2, 5, 5, step]))).square().sum()


class Given(nn.Module):
    """Gradients of two parameters, given as complex numbers. A real model has two numbers in the place of each of them."""

    def __init__(self, is_complex):
        super().__init__()
        self.is_complex = is_complex
        self.matrix, self.vector = (nn.Parameter(self.taken(torch.zeros(*sizes, dtype=torch.complex64))) for sizes in ((40, 30), (7,)))

    def taken(self, numbers):
        return numbers if self.is_complex else torch.view_as_real(numbers).flatten(-2)

    def forward(self, step):
        generator = torch.Generator().manual_seed(1000 * step + dist.get_rank())
        total = 0
        for each, sizes in ((self.matrix, (40, 30)), (self.vector, (7,))):
            gradient = self.taken(torch.randn(*sizes, dtype=torch.complex64, generator=generator))
            total = total + (each * gradient.conj()).real.sum()
        return total

    def gradients(self):
        return torch.cat([(torch.view_as_real(each.grad) if self.is_complex else each.grad).flatten() for each in self.parameters()])


def options_of(hook):
    """With the state that the hook may have."""
    if hook in WIRE_FORMATS:
        feedback = {} if hook == "fp32" else {"error_feedback": True}
        return {"levels": "one", "exempt_one_dimensional": hook not in ("fp32", "int4"), **feedback}
    if hook == "auto":  # On so slow a network it chooses a format of 8 bits, whatever it measures.
        return {"levels": "one", "link_gbit": 1e-4, "link_us": 50}
    return {"levels": "one", "power_sgd_start": 1} if "power_sgd" in hook else {}


class OnEachRank(RankTestCase):
    """The program of one rank."""

    def sparse_gradients(self, register):
        torch.manual_seed(0)
        ddp = DistributedDataParallel(Sparse())
        register(ddp)
        gradients = []
        for step in range(STEPS):
            ddp.zero_grad()
            ddp(step).backward()
            self.assertTrue(ddp.module.embedding.weight.grad.is_sparse)
            gradients += [each.grad.to_dense().flatten() for each in ddp.parameters()]
        return torch.cat(gradients)

    def sparse(self):
        """As PyTorch's hooks of these names average them on Gloo."""
        group, _ = dist.new_subgroups(dist.get_world_size())
        wrapped, of_pytorch_wrapped = (each.bf16_compress_wrapper(each.allreduce_hook) for each in (default_hooks, of_pytorch))
        for hook, theirs in (
                (lambda ddp: narrowcast.register(ddp, "allreduce"), of_pytorch.allreduce_hook),
                (lambda ddp: ddp.register_comm_hook(None, default_hooks.allreduce_hook), of_pytorch.allreduce_hook),
                (lambda ddp: narrowcast.register(ddp, "bf16_compress"), of_pytorch.bf16_compress_hook),
                (lambda ddp: ddp.register_comm_hook(None, wrapped), of_pytorch_wrapped),
                (lambda ddp: ddp.register_comm_hook(PostLocalSGDState(None, group, 1), post_localSGD_hook), of_pytorch.allreduce_hook)):
            expected = self.sparse_gradients(lambda ddp: ddp.register_comm_hook(None, theirs))
            self.assert_same(self.sparse_gradients(hook), expected)

    def sparse_without_means(self):
        """Each rank keeps its own gradients."""
        own = self.sparse_gradients(lambda ddp: narrowcast.register(ddp, "noop"))
        self.assert_same(self.sparse_gradients(lambda ddp: narrowcast.register(ddp, "post_local_sgd", local_group=1)), own)
        self.assertFalse(own.equal(self.sparse_gradients(lambda ddp: narrowcast.register(ddp, "allreduce"))))

    def sparse_bytes(self):
        """Indices and values: 5 rows of 4 floats and a number of 64 bits."""
        hooks = []
        self.sparse_gradients(lambda ddp: hooks.append(narrowcast.register(ddp, "allreduce")))
        dense = (dist.get_world_size() - 1) * 2 * 15 * 4 // dist.get_world_size()
        self.assertEqual(hooks[0].payload_bytes_sent, STEPS * (dense + (dist.get_world_size() - 1) * 5 * (4 * 4 + 8)))

    def refused_sparse(self):
        """By register before anything is sent, else by the first sparse bucket. The group remains usable."""
        ddp = DistributedDataParallel(Sparse())
        for hook in narrowcast.hook_names()[1:]:
            if hook in ("allreduce", "bf16_compress", "noop", "post_local_sgd"):
                continue
            with self.subTest(hook=hook):
                with self.assertRaisesRegex(ValueError, f"{hook}: module 'embedding' makes sparse gradients, .*{DENSE_ONLY}"):
                    narrowcast.register(ddp, hook)
                text = ("fp16_compress: sparse gradients cannot be averaged as float16 on the CPU" if hook == "fp16_compress" else
                        "bucket [01] holds sparse gradients, but this hook averages only dense ones")
                with self.assertRaisesRegex((ValueError, TypeError), f"{text}: {DENSE_ONLY}"):
                    self.sparse_gradients(lambda ddp: ddp.register_comm_hook(narrowcast.CommHook(hook), narrowcast.comm_hook))
        frozen = Sparse()
        frozen.embedding.requires_grad_(False)
        narrowcast.register(DistributedDataParallel(frozen), "int8")
        self.sparse()

    def complex_numbers(self):
        """The hooks give the bits, and keep the state, of a real model with twice as many numbers."""
        for hook in narrowcast.hook_names()[1:]:
            with self.subTest(hook=hook):
                models, hooks = [], []
                for is_complex in (False, True):
                    models.append(DistributedDataParallel(Given(is_complex)))
                    hooks.append(narrowcast.register(models[-1], hook, **options_of(hook)))
                for step in range(STEPS):
                    self.check_step(models, step)
                self.assertEqual(hooks[0].payload_bytes_sent, hooks[1].payload_bytes_sent)
                real, own = (each.state_dict(model)["tensors"] for each, model in zip(hooks, models))
                self.assertEqual(list(real), list(own))
                for name, tensor in real.items():
                    if name.endswith(("matrix", "vector")):  # "auto" also has costs, which it measures.
                        self.assertTrue(own[name].equal(tensor), name)
                for each, model in zip(hooks, models):
                    each.load_state_dict(each.state_dict(model), model)
                self.check_step(models, STEPS)

    def check_step(self, models, step):
        for each in models:
            each.zero_grad()
            each(step).backward()
        real, own = (each.module.gradients() for each in models)
        self.assert_same(own, real)


class GradientKinds(unittest.TestCase):
    def test_two_ranks(self):
        checks = ("sparse", "sparse_without_means", "sparse_bytes", "refused_sparse", "complex_numbers")
        self.assertEqual(run_on_ranks(2, OnEachRank(*checks)), [0] * 2)

    def test_three_ranks(self):
        self.assertEqual(run_on_ranks(3, OnEachRank("sparse", "sparse_bytes", "complex_numbers")), [0] * 3)


def load_tests(loader, _tests, _pattern):
    return loader.loadTestsFromTestCase(GradientKinds)


if __name__ == "__main__":
    unittest.main()

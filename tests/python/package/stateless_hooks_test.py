"""Hooks whose state is a process group: models that share one, and groups that end."""
import gc
import itertools
import pathlib
import unittest

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel
from torch.utils.checkpoint import checkpoint

import narrowcast
from narrowcast.ddp_comm_hooks.default_hooks import allreduce_hook, bf16_compress_hook
from narrowcast.ddp_comm_hooks.quantization_hooks import quantization_perchannel_hook, quantization_pertensor_hook
from support.gradients import BUCKET, STEPS, Matrices, Network, RankTestCase, loss_of, trained, wrapped, wrapped_with_buckets
from support.ranks import run_on_ranks

# Hooks by the names of the hooks in C++.
HOOKS = {"bf16_compress": bf16_compress_hook, "quantize_per_channel": quantization_perchannel_hook}


class Checkpointed(nn.Module):
    """With use_reentrant, the backward pass of each layer except the first is a pass of its own within the model's."""

    def __init__(self, use_reentrant=True):
        super().__init__()
        self.use_reentrant = use_reentrant
        self.layers = nn.ModuleList(nn.Linear(61, 61) for _ in range(6))

    def forward(self, x):
        x = self.layers[0](x)
        for layer in self.layers[1:]:
            x = checkpoint(lambda x, layer=layer: layer(x).tanh(), x, use_reentrant=self.use_reentrant)
        return x


class TogetherInFlight:
    """Calls a hook of several models. After the step in which hooks are made, rank 1 gives no bucket before rank 0 has given all
    of its own, which therefore are in flight together."""
    joint_passes = 0
    step = 0
    last_buckets = 0

    def __init__(self, hook, models):
        self.hook, self.models = hook, models

    @classmethod
    def begin(cls, step):
        cls.joint_passes += 1
        cls.step, cls.last_buckets = step, 0

    def run(self, group: object, bucket: dist.GradBucket) -> torch.futures.Future[torch.Tensor]:
        cls, store = TogetherInFlight, dist.distributed_c10d._get_default_store()
        key = f"all buckets of pass {cls.joint_passes}"
        if cls.step > 0 and dist.get_rank() == 1:
            store.wait([key])
        future = self.hook(group, bucket)
        cls.last_buckets += bucket.is_last()
        if cls.last_buckets == self.models and dist.get_rank() == 0:
            store.set(key, "")
        return future


def engines():
    """The number of narrowcast's communication threads."""
    names = [each.read_text() for each in pathlib.Path("/proc/self/task").glob("*/comm")]
    return names.count("nc_engine\n")


class OnEachRank(RankTestCase):
    """The program of one rank."""

    def two_models(self):
        """A function without a state serves two models, on one group, in one backward pass and in separate ones."""
        for hook in (bf16_compress_hook, quantization_perchannel_hook):
            models, alone = ([Network(), Network(), Matrices()] for _ in range(2))
            ddps = [wrapped_with_buckets(each) for each in models]
            for ddp, model, single in zip(ddps, models, alone):
                single.load_state_dict(model.state_dict())
                ddp.register_comm_hook(None, TogetherInFlight(hook, len(ddps)).run)
            expected = [wrapped_with_buckets(each) for each in alone]
            for ddp in expected:
                name = "bf16_compress" if hook is bf16_compress_hook else "quantize_per_channel"
                narrowcast.register(ddp, name)
            for step in range(STEPS):
                TogetherInFlight.begin(step)
                for ddp in ddps:
                    ddp.zero_grad()
                sum(loss_of(each, step) for each in ddps).backward()
                for ddp, single in zip(ddps, expected):
                    trained(single, 1, step)
                    self.assert_same([each.grad for each in ddp.parameters()], [each.grad for each in single.parameters()])

    def two_models_with_checkpoints(self):
        """The passes within a model's pass are no reason to give a bucket that is in flight again. Rank 1 gives nothing before
        rank 0 begins with its second model, so the first model's buckets are in flight then."""
        store = dist.distributed_c10d._get_default_store()
        for use_reentrant, (name, hook) in itertools.product((True, False), HOOKS.items()):
            models, alone = ([Checkpointed(use_reentrant), Checkpointed(use_reentrant)] for _ in range(2))
            ddps = [DistributedDataParallel(each, bucket_cap_mb=.02) for each in models]
            for i, ddp in enumerate(ddps):

                def run(group, bucket, second=i == 0):  # Its nodes are older, so its gradients come later.
                    key = f"{name}, {use_reentrant}: the second model of step {step}"
                    if step > 0 and dist.get_rank() == 0 and second:
                        store.set(key, "")
                    if step > 0 and dist.get_rank() == 1:
                        store.wait([key])
                    return hook(group, bucket)

                ddp.register_comm_hook(None, run)
                alone[i].load_state_dict(models[i].state_dict())
            expected = [DistributedDataParallel(each, bucket_cap_mb=.02) for each in alone]
            for each in expected:
                narrowcast.register(each, name)
            for step in range(STEPS):
                for ddp in ddps:
                    ddp.zero_grad()
                sum(loss_of(each, step) for each in ddps).backward()
                for ddp, single in zip(ddps, expected):
                    trained(single, 1, step)
                    self.assert_same([each.grad for each in ddp.parameters()], [each.grad for each in single.parameters()])

    def destroyed_group(self):
        """Its hooks are closed with the last model that uses it."""
        before = engines()
        for hook in (quantization_pertensor_hook, quantization_perchannel_hook):
            group = dist.new_group()
            ddp = wrapped(process_group=group)
            ddp.register_comm_hook(group, hook)
            trained(ddp, 2)
            self.assertEqual(engines(), before + 1)
            dist.destroy_process_group(group)
            del group, ddp
            gc.collect()
            self.assertEqual(engines(), before)

    def other_group(self):
        """The state is the group whose ranks average: here each rank alone."""
        alone, _ = dist.new_subgroups(1)
        ddp = wrapped()
        ddp.register_comm_hook(alone, allreduce_hook)
        loss_of(ddp, 0).backward()
        single = Network()
        single.load_state_dict(ddp.module.state_dict())
        loss_of(single, 0).backward()
        self.assert_same([each.grad for each in ddp.parameters()], [each.grad for each in single.parameters()])


class StatelessHooks(unittest.TestCase):
    def test_two_ranks(self):
        checks = ("two_models", "two_models_with_checkpoints", "destroyed_group", "other_group")
        self.assertEqual(run_on_ranks(2, OnEachRank(*checks)), [0] * 2)


def load_tests(loader, _tests, _pattern):
    return loader.loadTestsFromTestCase(StatelessHooks)


if __name__ == "__main__":
    unittest.main()

"""narrowcast.ShardedOptimizer with a hook, over all ranks: bits, differences, states, and errors."""
import copy
import io
import unittest
from unittest import mock

import torch
import torch.distributed as dist
from torch import nn

import narrowcast
from package.sharded_optimizer_test import EXAMPLE, Layers, flat, groups_of
from support.gradients import Network, RankTestCase, gathered, learns, loss_of, wrapped
from support.ranks import run_on_ranks

STEPS = 5  # Buckets are rebuilt in the second one.
LR = .01
optim = torch.optim
# Hooks in one level, in two where ranks share a node, and those that average all elements anyway.
HOOKS = [("int8", {"node_size": 1}), ("int8", {}), ("fp32", {"node_size": 2}), ("int4", {"error_feedback": True}),
         ("fp16_compress", {})]


class Training:
    """Steps with clipping, of an optimizer that is sharded over all ranks, or not."""

    def __init__(self, model, hook, options, optimizer, is_sharded=True, parameter_format="fp32", whole=False,
                 ddp=None, **defaults):
        self.ddp = wrapped(copy.deepcopy(model), **{"find_unused_parameters": isinstance(model, Layers), **(ddp or {})})
        self.hook = narrowcast.register(self.ddp, hook, **options)
        params = groups_of(self.ddp.module)
        if is_sharded:
            self.optimizer = narrowcast.ShardedOptimizer(params, optimizer, hook=self.hook, parameter_format=parameter_format,
                                                         whole_parameters=whole, **defaults)
        else:
            self.optimizer = optimizer(params, **defaults)

    def step(self, number, max_norm=None):
        self.optimizer.zero_grad()
        loss_of(self.ddp, number).backward()
        norm = None
        if max_norm is not None and isinstance(self.optimizer, narrowcast.ShardedOptimizer):
            norm = self.optimizer.clip_grad_norm_(max_norm)
        elif max_norm is not None:
            norm = nn.utils.clip_grad_norm_(self.ddp.parameters(), max_norm)
        self.optimizer.step()
        return norm


class OnEachRank(RankTestCase):
    """The program of one rank."""

    def assert_equal_on_ranks(self, tensor):
        self.assert_same(gathered(tensor).std(0).amax(), torch.zeros((), dtype=torch.double))

    def check_bits(self, hook, options, optimizer, model, **defaults):
        plain, sharded = [Training(model, hook, options, optimizer, each, **defaults) for each in (False, True)]
        begin = flat(model)
        for step in range(STEPS):
            plain.step(step)
            sharded.step(step)
            self.assert_same(flat(sharded.ddp), flat(plain.ddp))
        self.assertGreater((flat(plain.ddp) - begin).abs().max(), 1e-4)
        self.assertEqual(gathered(torch.tensor([sharded.optimizer.own_elements])).sum(), sharded.optimizer.elements)
        self.assertLess(sharded.optimizer.own_elements, sharded.optimizer.elements)

    def bits(self):
        """Without differences, those of the optimizer without shards."""
        for hook, options in HOOKS:
            with self.subTest(hook=hook, options=options):
                self.check_bits(hook, options, optim.AdamW, Network(), lr=LR)
        for optimizer, defaults in (optim.SGD, {"momentum": .9}), (optim.Adagrad, {}), (optim.Rprop, {}):
            with self.subTest(optimizer=optimizer):
                self.check_bits("int8", {}, optimizer, Layers(), lr=LR, **defaults)
        for ddp in {"static_graph": True}, {"gradient_as_bucket_view": True}:
            with self.subTest(ddp=ddp):
                self.check_bits("int8", {}, optim.AdamW, Network(), lr=LR, ddp=ddp)
        self.check_bits("int8", {}, optim.Adafactor, Network(), whole=True)

    def differences(self):
        """Replicas stay equal. A parameter differs from its master by at most half a step of the block's largest difference,
        which is at most the change of a step and what remains (trainer/ddp/sharding/sharded_parts_test.cpp)."""
        training = Training(Network(), "int8", {}, optim.SGD, parameter_format=None, lr=LR)
        own = training.optimizer
        for step in range(STEPS):
            before = flat(training.ddp)
            training.step(step)
            self.assert_equal_on_ranks(flat(training.ddp))
            change = (flat(training.ddp) - before).abs().max()
            largest = max([(tensor.flatten() - piece.of(piece.parameter.detach())).abs().max()
                           for piece, tensor in zip(own._own_shard, own._tensors)], default=torch.zeros(()))
            self.assertGreater(gathered(largest[None]).max(), 0)
            self.assertLess(largest, change / 200)

    def clipping(self):
        """The norm is that of all gradients, apart from the order of its sum."""
        plain, sharded = [Training(Network(), "int8", {"node_size": 1}, optim.SGD, each, lr=LR) for each in (False, True)]
        for training in plain, sharded:
            for each, value in zip(training.ddp.parameters(), range(6)):
                nn.init.normal_(each, 0, .1, generator=torch.Generator().manual_seed(value))
        for step in range(3):
            norms = [each.step(step, max_norm=.01) for each in (plain, sharded)]
            self.assertGreater(norms[0], .01)
            torch.testing.assert_close(norms[1], norms[0], rtol=1e-5, atol=0)
            torch.testing.assert_close(flat(sharded.ddp), flat(plain.ddp), rtol=1e-5, atol=1e-7)

    def accumulation(self):
        model = Network()
        plain, sharded = [Training(model, "int8", {}, optim.AdamW, each, lr=LR) for each in (False, True)]
        for step in range(3):
            for training in plain, sharded:
                training.optimizer.zero_grad()
                with training.ddp.no_sync():
                    loss_of(training.ddp, 100 + step).backward()
                loss_of(training.ddp, step).backward()
                training.optimizer.step()
            self.assert_same(flat(sharded.ddp), flat(plain.ddp))

    def states(self):
        """A training goes on without shards, and the other way round, bit for bit."""
        trainings = [Training(Network(), "int8", {}, optim.AdamW, each, lr=LR) for each in (False, True)]
        saved = []
        for training in trainings:
            for each, value in zip(training.ddp.parameters(), range(6)):
                nn.init.normal_(each, 0, .1, generator=torch.Generator().manual_seed(value))
            for step in range(3):
                training.step(step)
            if training is trainings[1]:
                training.optimizer.consolidate_state_dict(to=1)
            file = io.BytesIO()
            if training is trainings[0] or dist.get_rank() == 1:
                torch.save((training.ddp.state_dict(), training.optimizer.state_dict()), file)
            contents = [file.getvalue()]
            dist.broadcast_object_list(contents, src=1)
            saved.append(torch.load(io.BytesIO(*contents)))
        self.assertEqual(str(saved[1][1]), str(saved[0][1]))
        results = []
        for number, is_sharded in enumerate((True, False)):
            again = Training(Network(), "int8", {}, optim.AdamW, is_sharded, lr=LR)
            again.ddp.load_state_dict(saved[number][0])
            again.optimizer.load_state_dict(saved[number][1])
            for step in range(3, 6):
                again.step(step)
            results.append(flat(again.ddp))
        self.assert_same(*results)

    def masters_after_loading(self):
        """They begin with the values of the loaded parameters."""
        training = Training(Network(), "int8", {}, optim.SGD, parameter_format="int8_b128", lr=0.)
        training.step(0)
        training.optimizer.consolidate_state_dict(to=0)
        contents = [training.optimizer.state_dict() if dist.get_rank() == 0 else None]
        dist.broadcast_object_list(contents)
        with torch.no_grad():
            for each in training.ddp.parameters():
                each.fill_(7)
        training.optimizer.load_state_dict(contents[0])
        training.optimizer.param_groups[1]["lr"] = 0.
        training.step(1)
        self.assert_same(flat(training.ddp), torch.full_like(flat(training.ddp), 7))

    def changed_parameters(self):
        """A change that the masters do not know is an error; take_parameters() makes it known."""
        training = Training(Network(), "int8", {}, optim.SGD, parameter_format=None, lr=LR)
        training.step(0)
        training.optimizer.take_parameters()
        with torch.no_grad():
            for each in training.ddp.parameters():
                each.clamp_(-.01, .01)
        for group in training.optimizer.param_groups:
            group["lr"] = 0.
        before = flat(training.ddp)
        training.step(1)
        self.assert_same(flat(training.ddp), before)
        with torch.no_grad():
            training.ddp.module.layers[0].bias.fill_(7)
        with self.assertRaisesRegex(ValueError, "parameter [0-5] was changed since the last step, .* call take_parameters"):
            training.step(2)

    def averaged_twice(self):
        """Also in the next step, unless gradients are cleared."""
        training = Training(Network(), "int8", {}, optim.SGD, lr=LR)
        training.step(0)
        for clears in False, True:
            training.optimizer.zero_grad()
            loss_of(training.ddp, 1).backward()
            if clears:
                training.optimizer.zero_grad()
            loss_of(training.ddp, 2).backward()
            if clears:
                training.optimizer.step()
            else:
                with self.assertRaisesRegex(ValueError, "on rank 0: gradients were averaged twice since they were None"):
                    training.optimizer.clip_grad_norm_(1.)

    def clipping_of_nan(self):
        training = Training(Network(), "fp32", {"node_size": 1}, optim.SGD, lr=LR)
        (loss_of(training.ddp, 0) * torch.nan).backward()
        self.assertTrue(training.optimizer.clip_grad_norm_(1.).isnan())
        training.optimizer.step()
        self.assertTrue(flat(training.ddp).isnan().all())

    def other_strides(self):
        model = Layers()
        training = Training(model, "int8", {}, optim.SGD, parameter_format=None, lr=LR)
        training.step(0)
        training.ddp.module.image.to(memory_format=torch.contiguous_format)
        with self.assertRaisesRegex(ValueError, "parameter [0-9] has other strides than when it was sharded"):
            training.step(1)

    def refusals(self):
        """Errors are the same on all ranks, and name the value."""
        ddp = wrapped(Network())
        hook = narrowcast.register(ddp, "int8")
        is_wrong = dist.get_rank() == 1

        def check(error, text, **options):
            with self.subTest(text=text), self.assertRaisesRegex(error, text):
                narrowcast.ShardedOptimizer(ddp.parameters(), optim.AdamW, **options)

        where = "ShardedOptimizer on rank 1: "
        check(TypeError, where + "hook: must be a CommHook, but is a str", hook="int8" if is_wrong else hook)
        check(ValueError, where + ".*is not made before its first bucket", hook=narrowcast.CommHook("int8") if is_wrong else hook)
        check(ValueError, "parameter_format: int8_b128 has no effect without a hook", parameter_format="int8_b128")
        check(ValueError, where + ".*int9", hook=hook, parameter_format="int9" if is_wrong else None)
        check(ValueError, "parameter_format differs between ranks: rank 0 has not set, rank 1 has fp32", hook=hook,
              parameter_format="fp32" if is_wrong else None)
        check(ValueError, "the hook of the shards differs between ranks: rank 0 has int8, rank 1 has none",
              hook=None if is_wrong else hook)
        check(ValueError, "node_size: 2 has no effect with a hook", hook=hook, node_size=2)
        noop = narrowcast.CommHook("noop").open("cpu")
        check(ValueError, "with hook noop they do not", hook=noop)
        optimizer = narrowcast.ShardedOptimizer(ddp.parameters(), optim.AdamW, hook=hook)
        check(ValueError, "another optimizer is already sharded over all ranks with this hook", hook=hook)
        with self.assertRaisesRegex(ValueError, "no gradients were averaged yet"):
            optimizer.clip_grad_norm_(1.)
        with self.assertRaisesRegex(ValueError, "closure: must be None with a hook"):
            optimizer.step(lambda: None)
        scaler = torch.amp.GradScaler("cpu")
        scaler.scale(loss_of(ddp, 0)).backward()
        with self.assertRaisesRegex(ValueError, "GradScaler cannot be used with hook="):
            scaler.step(optimizer)
        optimizer.step()
        optimizer.close()
        with self.assertRaisesRegex(ValueError, "the optimizer is closed"):
            optimizer.step()
        whole = narrowcast.ShardedOptimizer(ddp.parameters(), optim.AdamW, hook=hook, whole_parameters=True)
        check(ValueError, "another optimizer is already sharded over all ranks with this hook", hook=hook)
        del whole

    def other_parameters(self):
        ddp = wrapped(Network())
        hook = narrowcast.register(ddp, "int8")
        optimizer = narrowcast.ShardedOptimizer(list(ddp.parameters())[:2], optim.AdamW, hook=hook)
        loss_of(ddp, 0).backward()
        with self.assertRaisesRegex(ValueError, "gradients of 4 parameters are averaged that the optimizer does not have"):
            optimizer.step()

    def end(self):
        """After the optimizer is closed, the hook averages all elements again."""
        ddps = [wrapped(Network()) for _ in range(2)]
        hooks = [narrowcast.register(each, "int8") for each in ddps]
        narrowcast.ShardedOptimizer(ddps[0].parameters(), optim.AdamW, hook=hooks[0]).close()
        ddps[0].load_state_dict(ddps[1].state_dict())
        for each in ddps:
            loss_of(each, 0).backward()
        self.assert_same(*[torch.cat([each.grad.flatten() for each in ddp.parameters()]) for ddp in ddps])

    def step_that_fails(self):
        """On rank 1: the other ranks fail as well."""
        training = Training(Network(), "int8", {"node_size": 1}, optim.SGD, lr=LR)
        training.step(0)
        if dist.get_rank() == 1:
            with mock.patch.object(training.optimizer._inner, "step", side_effect=KeyError("of the step")):
                self.assertRaisesRegex(KeyError, "of the step", lambda: training.step(1))
        else:
            with self.assertRaisesRegex(dist.DistBackendError, "rank 1 could not take part in it"):
                training.step(1)


class ShardedOverAllRanks(unittest.TestCase):
    def run_checks(self, world_size, *checks):
        self.assertEqual(run_on_ranks(world_size, OnEachRank(*checks)), [0] * world_size)

    def test_two_ranks(self):
        self.run_checks(2, "bits", "differences", "clipping", "accumulation", "states", "masters_after_loading", "averaged_twice",
                        "clipping_of_nan", "refusals", "end", "other_parameters")

    def test_four_ranks(self):
        self.run_checks(4, "bits", "differences", "states")

    def test_example(self):
        learns(self, EXAMPLE, "--hook=int8")

    def test_a_step_that_fails(self):
        self.run_checks(3, "step_that_fails")
        for check in "changed_parameters", "other_strides":
            self.run_checks(2, check)


def load_tests(loader, _tests, _pattern):
    return loader.loadTestsFromTestCase(ShardedOverAllRanks)


if __name__ == "__main__":
    unittest.main()

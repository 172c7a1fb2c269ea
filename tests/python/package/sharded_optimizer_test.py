"""narrowcast.ShardedOptimizer: bits of the optimizer without shards, states, and errors."""
import copy
import io
import os
import tempfile
import unittest
from unittest import mock

import torch
import torch.distributed as dist
from torch import nn

import narrowcast
from support.gradients import ROOT, Network, RankTestCase, gathered, learns, loss_of, wrapped
from support.ranks import run_on_ranks

EXAMPLE = ROOT / "docs/examples/sharded_optimizer_from_python.py"
STEPS = 4
optim = torch.optim
# Optimizers, their options, and whether ranks must step whole parameters.
SOME = [(optim.AdamW, {"lr": .01, "weight_decay": .1}, False), (optim.SGD, {"lr": .05, "momentum": .9, "weight_decay": .01}, False)]
OTHERS = [(optim.ASGD, {}, False), (optim.Adadelta, {}, False), (optim.Adagrad, {"fused": True}, False), (optim.Adagrad, {}, False),
          (optim.Adam, {"amsgrad": True}, False), (optim.Adamax, {}, False), (optim.NAdam, {}, False), (optim.RAdam, {}, False),
          (optim.RMSprop, {"momentum": .9, "centered": True}, False), (optim.Rprop, {}, False), (optim.Adafactor, {}, True),
          (optim.AdamW, {"lr": torch.tensor(.01)}, True)]
IMPLEMENTATIONS = [{}, {"foreach": False}, {"foreach": True}, {"fused": True}]


class Layers(Network):
    """Parameters of every kind: frozen, of no dimension, without elements, with other strides, without gradients in some steps."""

    def __init__(self, optimizer=None):
        super().__init__(has_branches=True)
        nothing = torch.zeros(int(optimizer is optim.Adafactor), 3)  # Adafactor divides by the number of elements.
        self.scale, self.nothing = map(nn.Parameter, (torch.tensor(1.5), nothing))
        self.image = nn.Conv2d(3, 20, 3).to(memory_format=torch.channels_last)
        self.layers[2].bias.requires_grad_(False)

    def forward(self, x, takes_branch=False):
        y = super().forward(x, takes_branch) * self.scale + self.nothing.sum()
        return y + self.image(x[:, :48].reshape(-1, 3, 4, 4)).mean()


def groups_of(model):
    """Two groups with different options."""
    named = list(model.named_parameters())
    return [{"params": [each for name, each in named if name.endswith("weight")], "weight_decay": .2},
            {"params": [each for name, each in named if not name.endswith("weight")], "lr": .02}]


def flat(model):
    return torch.cat([each.detach().flatten() for each in model.parameters()])


class Training:
    """Steps with a schedule and clipping."""

    def __init__(self, make, model, always_branches=False):
        self.always_branches = always_branches
        self.ddp = wrapped(copy.deepcopy(model), find_unused_parameters=True)
        self.optimizer = make(groups_of(self.ddp.module))
        self.scheduler = optim.lr_scheduler.LambdaLR(self.optimizer, [lambda step: 1 / (1 + step), lambda step: .5**step])

    def step(self, number):
        self.optimizer.zero_grad()
        loss_of(self.ddp, number, takes_branch=self.always_branches or number % 2 == 1).backward()
        nn.utils.clip_grad_norm_(self.ddp.parameters(), .3)
        self.optimizer.step()
        self.scheduler.step()


class OnEachRank(RankTestCase):
    """The program of one rank."""

    def check_bits(self, optimizer, options, whole, **own):
        model = Layers(optimizer)
        # PyTorch's fused SGD fails if a parameter has no gradient in its first step, but in a later one.
        always = optimizer is optim.SGD and options.get("fused", False)
        plain = Training(lambda params: optimizer(params, **copy.deepcopy(options)), model, always)
        sharded = Training(lambda params: narrowcast.ShardedOptimizer(params, optimizer, whole_parameters=whole,
                                                                      **copy.deepcopy(options), **own), model, always)
        begin = flat(model)
        for step in range(STEPS):
            plain.step(step)
            sharded.step(step)
            self.assert_same(flat(sharded.ddp), flat(plain.ddp))
        self.assertGreater((flat(plain.ddp) - begin).abs().max(), 1e-4)
        return sharded.optimizer

    def bits(self):
        for optimizer, options, whole in SOME:
            for implementation in IMPLEMENTATIONS:
                with self.subTest(optimizer=optimizer, implementation=implementation):
                    self.check_bits(optimizer, {**options, **implementation}, whole)

    def bits_of_others(self):
        for optimizer, options, whole in OTHERS:
            with self.subTest(optimizer=optimizer, options=options):
                self.check_bits(optimizer, options, whole)

    def bits_on_nodes(self):
        """Of two ranks, and of three and one."""
        for node_size in 2, 3:
            with self.subTest(node_size=node_size):
                optimizer = self.check_bits(*SOME[0], node_size=node_size)
                self.assertEqual(optimizer.shards, node_size if dist.get_rank() < node_size else 4 - node_size)

    def share(self):
        """A rank holds the state of its shard only."""
        optimizer = self.check_bits(*SOME[0])
        states = optimizer._inner.state
        own = sum(value.numel() for state in states.values() for name, value in state.items() if name != "step")
        unused = sum(each.numel() for each in optimizer._tensors if each not in states)
        self.assertEqual(own, 2 * (optimizer.own_elements - unused))
        self.assertEqual(gathered(torch.tensor([optimizer.own_elements])).sum(), optimizer.elements)
        self.assertLess(abs(optimizer.own_elements - optimizer.elements / dist.get_world_size()), 64)  # Of a border.
        self.assertFalse(optimizer.state)

    def states(self):
        """A training goes on in another world and without shards, and the other way round, bit for bit."""
        for optimizer, options, whole in SOME + OTHERS[-3:]:
            with self.subTest(optimizer=optimizer, options=options):
                def make(params, is_sharded, **own):
                    if not is_sharded:
                        return optimizer(params, **copy.deepcopy(options))
                    return narrowcast.ShardedOptimizer(params, optimizer, whole_parameters=whole, **copy.deepcopy(options), **own)

                model = Layers(optimizer)
                ways = [(False, {}), (True, {}), (True, {"node_size": 2}), (True, {"node_size": 3})]
                saved = [self.saved(Training(lambda params: make(params, *way[:1], **way[1]), model)) for way in ways]
                for each in saved:
                    self.check_equal(each["optimizer"], saved[0]["optimizer"])
                for number, (is_sharded, own) in enumerate(ways):
                    again = Training(lambda params: make(params, is_sharded, **own), model)
                    for name, part in (("ddp", again.ddp), ("optimizer", again.optimizer), ("scheduler", again.scheduler)):
                        part.load_state_dict(saved[number - 1][name])
                    again.step(3)
                    again.step(4)
                    self.assert_same(flat(again.ddp), expected := flat(again.ddp) if number == 0 else expected)

    def saved(self, training):
        """The training after 3 steps, on all ranks. Rank 1 consolidates the state."""
        for step in range(3):
            training.step(step)
        is_sharded = isinstance(training.optimizer, narrowcast.ShardedOptimizer)
        if is_sharded:
            training.optimizer.consolidate_state_dict(to=1)
        file = io.BytesIO()
        if dist.get_rank() == 1 or not is_sharded:
            torch.save({"ddp": training.ddp.state_dict(), "optimizer": training.optimizer.state_dict(),
                        "scheduler": training.scheduler.state_dict()}, file)
        else:
            with self.assertRaisesRegex(RuntimeError, f"rank {dist.get_rank()} does not have the state of whole parameters"):
                training.optimizer.state_dict()
        contents = [file.getvalue()]
        dist.broadcast_object_list(contents, src=1)
        training.step(3)
        if is_sharded:
            self.assertRaises(RuntimeError, training.optimizer.state_dict)
        return torch.load(io.BytesIO(*contents))

    def check_equal(self, actual, expected):
        if isinstance(expected, dict):
            self.assertEqual(actual.keys(), expected.keys())
            for name, value in expected.items():
                self.check_equal(actual[name], value)
        elif isinstance(expected, list):
            self.assertEqual(len(actual), len(expected))
            for pair in zip(actual, expected):
                self.check_equal(*pair)
        else:
            self.assert_same(actual, expected)

    def scaler(self):
        """Steps that overflow are skipped, and the others have the bits of a training without a scaler."""
        for options in {}, {"fused": True}:
            with self.subTest(options=options):
                self.scale({"lr": .01, **options})

    def scale(self, options):
        model = Network()
        plain, scaled = wrapped(copy.deepcopy(model)), wrapped(copy.deepcopy(model))
        expected = optim.AdamW(plain.parameters(), **options)
        optimizer = narrowcast.ShardedOptimizer(scaled.parameters(), optim.AdamW, **options)
        scaler = torch.amp.GradScaler("cpu", init_scale=8.)
        for step in range(STEPS):
            overflows = step == 2
            if not overflows:
                expected.zero_grad()
                loss_of(plain, step).backward()
                expected.step()
            optimizer.zero_grad()
            scaler.scale(loss_of(scaled, step) * (torch.inf if overflows else 1)).backward()
            scaler.step(optimizer)
            scaler.update()
            self.assertEqual(scaler.get_scale(), 4 if step >= 2 else 8)
            self.assert_same(flat(scaled), flat(plain))

    def strides(self):
        """Shards are cut in the memory of a parameter, whose order the gradient need not have."""
        parameters = [nn.Parameter(torch.ones(40, 50).t()) for _ in range(2)]
        optimizers = [optim.SGD(parameters[:1], lr=.1, momentum=.9),
                      narrowcast.ShardedOptimizer(parameters[1:], optim.SGD, lr=.1, momentum=.9)]
        for step in range(STEPS):
            gradient = torch.randn(50, 40)
            for parameter, optimizer in zip(parameters, optimizers):
                parameter.grad = gradient.clone()
                optimizer.step()
            self.assert_same(parameters[1], parameters[0])
        optimizers[1].consolidate_state_dict()
        if dist.get_rank() == 0:
            self.check_equal(optimizers[1].state_dict(), optimizers[0].state_dict())

    def closure(self):
        model = Network()
        ddp = wrapped(copy.deepcopy(model))
        optimizer = narrowcast.ShardedOptimizer(ddp.named_parameters(), optim.SGD, lr=.1)

        def closure():
            optimizer.zero_grad()
            loss = loss_of(ddp, 0)
            loss.backward()
            return loss

        versions = [each._version for each in ddp.parameters()]
        self.assertEqual(optimizer.step(closure).item(), loss_of(model, 0).item())
        self.assertFalse(flat(ddp).equal(flat(model)))
        for version, each in zip(versions, ddp.parameters()):
            self.assertGreater(each._version, version)  # Autograd notices that the parameter has changed.

    def with_hook(self):
        """Of narrowcast, in the same group; gradients are equal on all ranks."""
        model = Network()
        ddps = [wrapped(copy.deepcopy(model)) for _ in range(2)]
        optimizers = [optim.AdamW(ddps[0].parameters()), narrowcast.ShardedOptimizer(ddps[1].parameters(), optim.AdamW)]
        for ddp, optimizer in zip(ddps, optimizers):
            narrowcast.register(ddp, "int8", levels="one")
            for step in range(STEPS):
                optimizer.zero_grad()
                loss_of(ddp, step).backward()
                optimizer.step()
        self.assert_same(flat(ddps[1]), flat(ddps[0]))

    def refusals(self):
        """Errors are the same on all ranks, and name the value."""
        model = Layers()
        optimizer = narrowcast.ShardedOptimizer(groups_of(model), optim.AdamW)
        with self.assertRaisesRegex(RuntimeError, "add_param_group: the parameters are sharded already"):
            optimizer.add_param_group({"params": [model.layers[2].bias]})
        with self.assertRaisesRegex(TypeError, "cannot be pickled or copied"):
            copy.deepcopy(optimizer)
        for to in (-1, dist.get_world_size()):
            with self.assertRaisesRegex(ValueError, f"to: must be a rank of the group, 0 to [13], but is {to}"):
                optimizer.consolidate_state_dict(to)
        with self.assertRaisesRegex(ValueError, "to differs between ranks: rank 0 has 0, rank 1 has 1"):
            optimizer.consolidate_state_dict(dist.get_rank() % 2)
        optimizer.consolidate_state_dict()
        self.assertEqual(optimizer._has_whole_state, dist.get_rank() == 0)

    def unfrozen_parameter(self):
        model = Layers()
        optimizer = narrowcast.ShardedOptimizer(groups_of(model), optim.AdamW)
        model.layers[2].bias.grad = torch.ones(100)
        before = flat(model)
        with self.assertRaisesRegex(ValueError, r"a parameter \[100\] of group 1 has a gradient, but required none"):
            optimizer.step()
        self.assert_same(flat(model), before)

    def moved_parameter(self):
        model = Network()
        optimizer = narrowcast.ShardedOptimizer(model.parameters(), optim.AdamW)
        for each in model.parameters():
            each.data = each.data.clone()
        with self.assertRaisesRegex(ValueError, "parameter [0-3] has other memory than when it was sharded"):
            optimizer.step()

    def sparse_gradient(self):
        model = nn.Embedding(500, 3)
        optimizer = narrowcast.ShardedOptimizer(model.parameters(), optim.SGD, lr=.1)
        model.weight.grad = torch.ones(500, 3).to_sparse()
        with self.assertRaisesRegex(ValueError, "the gradient of parameter 0 has the layout torch.sparse_coo, so it cannot be cut"):
            optimizer.step()

    def one_wrong_rank(self):
        """Its error is an error on all ranks, which change nothing. The group remains usable."""
        is_wrong = dist.get_rank() == 1
        before = flat(model := Network())

        def check(error, text, kind=optim.AdamW, params=None, **options):
            params = model.parameters() if params is None or not is_wrong else params
            with self.subTest(text=text), self.assertRaisesRegex(error, text):
                narrowcast.ShardedOptimizer(params, kind if is_wrong else optim.AdamW, **(options if is_wrong else {}))
            self.assert_same(flat(model), before)

        whole = {"whole_parameters": True}
        where = "ShardedOptimizer on rank 1: "
        check(ValueError, where + "Invalid learning rate: -1", lr=-1)
        check(TypeError, where + ".*unexpected keyword argument 'rate'", rate=1)
        check(ValueError, where + "LBFGS computes with all parameters at once", optim.LBFGS, **whole)
        check(ValueError, where + "Muon is none of .* pass whole_parameters=True", optim.Muon, params=[model.layers[0].weight])
        check(ValueError, where + "Derived is none of", type("Derived", (optim.Adam,), {}))
        check(ValueError, where + "node_size: must be at least 1, but is 0", node_size=0)
        check(TypeError, where + "node_size: must be int, but is str two", node_size="two")
        check(ValueError, where + "silence_seconds: must be 0 or in 3..*, but is 1", silence_seconds=1)
        check(ValueError, where + "parameter 0 of the optimizer is Double", params=[torch.zeros(3).double().requires_grad_()])
        check(ValueError, where + "parameter 0 of the optimizer, .* has holes", params=[torch.zeros(9)[::2].requires_grad_()])
        check(ValueError, where + "optimizer got an empty parameter list", params=[])
        check(ValueError, where + "the optimizer has no parameter that requires a gradient", params=[torch.zeros(3)])
        check(ValueError, "the optimizer differs between ranks: rank 0 has torch.optim.adamw.AdamW, rank 1 has "
              "torch.optim.adam.Adam", optim.Adam)
        check(ValueError, "lr of parameter group 0 differs between ranks: rank 0 has 0.001, rank 1 has 0.1", lr=.1)
        check(ValueError, "whole_parameters differs between ranks: rank 0 has false, rank 1 has true", **whole)
        check(ValueError, "the number of parameter groups differs between ranks: rank 0 has 1, rank 1 has 2",
              params=[{"params": [each]} for each in model.layers[0].parameters()])
        check(ValueError, "the number of parameters differs between ranks: rank 0 has 6, rank 1 has 2",
              params=model.layers[0].parameters())
        with self.assertRaisesRegex(ValueError, "every node has one rank"):
            narrowcast.ShardedOptimizer(model.parameters(), optim.AdamW, node_size=1)
        optimizer = narrowcast.ShardedOptimizer(model.parameters(), optim.AdamW)
        self.wrong_states(optimizer, is_wrong)
        model.layers[2].weight.grad = torch.ones(100, 160)
        optimizer.step()
        self.assert_same(gathered(flat(model)).std(0).amax(), torch.zeros((), dtype=torch.double))
        self.assertFalse(flat(model).equal(before))

    def wrong_states(self, optimizer, is_wrong):
        """Of one rank: nothing is loaded."""
        groups = {"lr": 7., "params": list(range(6))}
        good = {"step": torch.tensor(1.), "exp_avg": torch.zeros(160, 61), "exp_avg_sq": torch.zeros(160, 61)}

        def check(text, state, groups=groups):
            saved = {"state": {0: state if is_wrong else good}, "param_groups": [groups]}
            with self.subTest(text=text), self.assertRaisesRegex(ValueError, "load_state_dict on rank 1: " + text):
                optimizer.load_state_dict(saved)
            self.assertEqual(optimizer.param_groups[0]["lr"], 1e-3)
            self.assertFalse(optimizer._inner.state)

        check(r"'exp_avg' of parameter 0 is \[61, 160\], but the parameter is \[160, 61\]",
              {**good, "exp_avg": torch.zeros(61, 160)})
        check("loaded state dict contains a parameter group that doesn't match the size", good,
              {**groups, "params": list(range(5 if is_wrong else 6))})

    def step_that_fails(self):
        """On rank 1: the other ranks of its node fail as well."""
        model = Network()
        optimizer = narrowcast.ShardedOptimizer(model.parameters(), optim.SGD, lr=1, node_size=2)
        for each in model.parameters():
            each.grad = torch.ones_like(each)
        optimizer.step()
        if dist.get_rank() == 1:
            with mock.patch.object(optimizer._inner, "step", side_effect=KeyError("of the step")):
                self.assertRaisesRegex(KeyError, "of the step", optimizer.step)
        elif dist.get_rank() == 0:
            with self.assertRaisesRegex(dist.DistBackendError, "rank 0: .*exchange.*rank 1"):
                optimizer.step()

    def rank_that_dies(self):
        model = Network()
        optimizer = narrowcast.ShardedOptimizer(model.parameters(), optim.SGD, lr=1)
        optimizer.step()
        if dist.get_rank() == 1:
            os._exit(7)
        with self.assertRaisesRegex(dist.DistBackendError, "rank 0: .*exchange.*rank 1"):
            optimizer.step()


class ShardedOptimizer(unittest.TestCase):
    def run_checks(self, world_size, *checks):
        self.assertEqual(run_on_ranks(world_size, OnEachRank(*checks)), [0] * world_size)

    def test_two_ranks(self):
        self.run_checks(2, "bits", "bits_of_others", "share", "scaler", "strides", "closure", "with_hook", "refusals",
                        "one_wrong_rank")

    def test_four_ranks(self):
        self.run_checks(4, "bits", "bits_on_nodes", "share", "states", "refusals", "one_wrong_rank")

    def test_steps_that_fail(self):
        """No exchange of a group works after them."""
        self.run_checks(4, "step_that_fails")
        for check in "unfrozen_parameter", "moved_parameter", "sparse_gradient":
            self.run_checks(2, check)

    def test_rank_that_dies(self):
        self.assertEqual(run_on_ranks(2, OnEachRank("rank_that_dies")), [0, 7])

    def test_example(self):
        with tempfile.TemporaryDirectory() as folder:
            learns(self, EXAMPLE, f"--output={folder}/checkpoint.pt")
            saved = torch.load(f"{folder}/checkpoint.pt")
        shapes = [each.shape for each in saved["model"].values()]
        self.assertEqual([state["exp_avg"].shape for state in saved["optimizer"]["state"].values()], shapes)


def load_tests(loader, _tests, _pattern):
    return loader.loadTestsFromTestCase(ShardedOptimizer)


if __name__ == "__main__":
    unittest.main()

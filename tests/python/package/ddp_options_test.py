"""Options of DistributedDataParallel, and what programs do with it, with a hook."""
import unittest

import torch
import torch.distributed as dist

import narrowcast
from support.gradients import STEPS, Network, RankTestCase, gathered, loss_of, own_gradients, tolerance, trained, wrapped
from support.ranks import run_on_ranks


CHECKS = ("accumulated", "unused_parameters", "static_graph", "bucket_view", "uneven_inputs", "two_models", "loss_scaling",
          "overflow")


class OnEachRank(RankTestCase):
    """The program of one rank."""

    def accumulated(self):
        """Two passes; the second one averages the sum of both."""
        model = Network()
        ddp = wrapped(model)
        narrowcast.register(ddp, "fp32")
        own = own_gradients(model, 0)
        with ddp.no_sync():
            loss_of(ddp, 0).backward()
        self.assert_same([each.grad for each in model.parameters()], list(own.values()))
        loss_of(ddp, 1).backward()
        second = own_gradients(model, 1)
        self.check_gradients(model, {name: own[name] + second[name] for name in own})

    def unused_parameters(self):
        """Only rank 0 uses a branch of the network."""
        self.under_options(dist.get_rank() == 0, find_unused_parameters=True)

    def static_graph(self):
        self.under_options(True, static_graph=True)

    def bucket_view(self):
        """All gradients of a bucket are parts of its memory. The next pass averages in the same memory."""
        alone, model = Network(), Network()
        trained(wrapped(alone), 1)
        ddp = wrapped(model, gradient_as_bucket_view=True)
        narrowcast.register(ddp, "fp32")
        for step in range(STEPS):
            ddp.zero_grad()
            loss_of(ddp, step).backward()
            self.check_gradients(model, own_gradients(model, step))
        self.assertEqual(count_memories(alone), len(list(alone.parameters())))
        self.assertLess(count_memories(model), len(list(model.parameters())))

    def under_options(self, takes_branch, **options):
        model = Network(has_branches=True)
        ddp = wrapped(model, **options)
        branch = {"takes_branch": takes_branch}
        narrowcast.register(ddp, "fp32")
        for step in range(STEPS):
            ddp.zero_grad()
            loss_of(ddp, step, **branch).backward()
            self.check_gradients(model, own_gradients(model, step, **branch))
        self.assertIsNone(model.unused.weight.grad)

    def check_gradients(self, model, own):
        for name, each in model.named_parameters():
            if each.grad is not None:
                of_ranks = gathered(own[name])
                error = (each.grad.flatten().double() - of_ranks.mean(0)).abs()
                self.assertLessEqual((error - tolerance(of_ranks, "fp32")).max(), 0, name)

    def uneven_inputs(self):
        """Rank 1 has a step more than rank 0, whose gradients are zeros in that step."""
        model = Network()
        ddp = wrapped(model)
        narrowcast.register(ddp, "fp32")
        with ddp.join():
            for step in range(1 + dist.get_rank()):
                ddp.zero_grad()
                loss_of(ddp, step).backward()
        own = own_gradients(model, 1)
        if dist.get_rank() == 1:
            for name, each in model.named_parameters():
                # A mean with zeros: a sum of one term, halved.
                self.assert_same(each.grad, own[name] / 2)

    def two_models(self):
        """A hook each, on one group, in one backward pass. Closing one leaves the other usable."""
        models = [Network(), Network()]
        ddps = [wrapped(each) for each in models]
        hooks = [narrowcast.register(each, "fp32") for each in ddps]
        for step in range(STEPS):
            for each in ddps:
                each.zero_grad()
            (loss_of(ddps[0], step) + 4 * loss_of(ddps[1], step)).backward()
            for model, factor in zip(models, (1, 4)):
                self.check_gradients(model, {name: factor * each for name, each in own_gradients(model, step).items()})
        hooks[0].close()
        trained(ddps[1], 1, STEPS)
        self.check_gradients(models[1], own_gradients(models[1], STEPS))

    def loss_scaling(self):
        """With a scaler, error feedback gives the gradients that it gives without one, up to float32: scales are powers of 2."""
        plain = trained_with_scaler(growth_interval=1000)
        growing = trained_with_scaler(growth_interval=2)
        self.assertNotEqual(plain[1], growing[1])
        self.assert_same(plain[0], growing[0])

    def overflow(self):
        """Gradients overflow in a step, which no rank takes. If they do on all ranks, all residuals stay, and follow the smaller
        scale: then the parameters are those of a training without the step."""
        plain, plain_scale = trained_with_scaler(growth_interval=1000)
        for ranks in ((0, 1), (1,)):
            parameters, scale = trained_with_scaler(growth_interval=1000, overflowing=ranks)
            self.assertEqual(scale, plain_scale / 2)
            for each, expected in zip(parameters, plain):
                self.assertEqual(each.equal(expected), len(ranks) == 2)
                self.assertTrue(each.isfinite().all())
                of_ranks = gathered(each)
                self.assert_same(of_ranks[0], of_ranks[1])


def trained_with_scaler(growth_interval, overflowing=()):
    """With a step more in which the gradients of these ranks overflow."""
    torch.manual_seed(0)
    model = Network()
    ddp = wrapped(model)
    hook = narrowcast.register(ddp, "int8", error_feedback=True, levels="one")  # Ranks of one node would round nothing.
    optimizer = torch.optim.SGD(model.parameters(), lr=.01)
    scaler = torch.amp.GradScaler("cpu", init_scale=8., growth_interval=growth_interval)
    steps = [(step, 1.) for step in range(6)]
    if overflowing:
        steps.insert(3, (0, torch.inf if dist.get_rank() in overflowing else 1.))
    for step, factor in steps:
        optimizer.zero_grad()
        scaler.scale(factor * loss_of(ddp, step)).backward()
        scaler.step(optimizer)
        before = scaler.get_scale()
        scaler.update()
        if scaler.get_scale() != before:
            hook.rescale_state(scaler.get_scale() / before)
    return [each.detach() for each in model.parameters()], scaler.get_scale()


def count_memories(model):
    """The number of separate memories that hold the model's gradients."""
    return len({each.grad.untyped_storage().data_ptr() for each in model.parameters()})


class DdpOptions(unittest.TestCase):
    def test_two_ranks(self):
        self.assertEqual(run_on_ranks(2, OnEachRank(*CHECKS)), [0] * 2)


def load_tests(loader, _tests, _pattern):
    return loader.loadTestsFromTestCase(DdpOptions)


if __name__ == "__main__":
    unittest.main()

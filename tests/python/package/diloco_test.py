"""narrowcast.DiLoCo: parameter means, formats, resuming, outer parameters and errors."""
import copy
import io
import unittest

import numpy
import torch
import torch.distributed as dist

import narrowcast
from support.gradients import BLOCKS, FLOAT, ROOT, Network, RankTestCase, gathered, half_steps, learns, loss_of, wrapped
from support.ranks import run_on_ranks

EXAMPLE = ROOT / "docs/examples/diloco_from_python.py"
STEPS = 4
RATE = .05
OPTIONS = {"outer_format": "int8_b128", "levels": "one", "outer_error_feedback": True, "fragments": 2, "sync_every": 4, "overlap_steps": 1}


def flat(model):
    return torch.cat([each.detach().flatten() for each in model.parameters()])


def sgd(model):
    return torch.optim.SGD(model.parameters(), lr=RATE)


def take_steps(model, optimizer, begin, end):
    for step in range(begin, end):
        optimizer.zero_grad()
        loss_of(model, step).backward()
        optimizer.step()


class OnEachRank(RankTestCase):
    """The program of one rank."""

    def check_equal_on_all_ranks(self, model):
        of_ranks = gathered(flat(model))
        self.assert_same(of_ranks, of_ranks[:1].expand_as(of_ranks).contiguous())

    def averages(self):
        """With "average" after each step, the parameters are the mean of the ranks' own. Two ranks in float32 have one rounding
        of each movement, of the mean and of the sum."""
        model = Network()
        outer = narrowcast.DiLoCo(sgd(model), sync_every=1, outer_optimizer="average")
        for step in range(STEPS):
            alone = copy.deepcopy(model)
            take_steps(alone, sgd(alone), step, step + 1)
            take_steps(model, outer, step, step + 1)
            outer.finish()
            own = gathered(flat(alone))
            self.assertGreater((own[0] - own[1]).abs().max(), 1e-4)
            error = (flat(model).double() - own.mean(0)).abs()
            self.assertLessEqual((error - 4 * FLOAT * own.abs().amax(0)).max(), 0)
            self.check_equal_on_all_ranks(model)
        self.assertEqual(outer.exchanges, STEPS)
        self.assertEqual(outer.lost_exchanges, 0)

    def rounds(self):
        """An int8 exchange of one movement differs from the mean by the rounding of its messages."""
        model = Network()
        begin, alone = flat(model), copy.deepcopy(model)
        outer = narrowcast.DiLoCo(sgd(model), sync_every=1, outer_optimizer="average", outer_format="int8_b128",
                                  levels="one")  # Ranks of one node send nothing with two levels.
        take_steps(alone, sgd(alone), 0, 1)
        take_steps(model, outer, 0, 1)
        outer.finish()
        own = gathered(flat(alone))
        # Blocks are not those of all parameters, so the largest error of any block is allowed for all.
        largest = (own - begin).abs().amax(-1, keepdim=True).expand_as(own)
        error = (flat(model).double() - own.mean(0)).abs()
        self.assertLessEqual((error - half_steps(largest, "int8_b128").mean(0) - 4 * FLOAT * own.abs().amax(0)).max(), 0)
        self.assertGreater(error.max(), largest[0, 0] / BLOCKS["int8_b128"][1] / 100)
        self.assertLess(outer.payload_bytes_sent, 1.1 * begin.numel())

    def trains(self):
        model = Network()
        outer = narrowcast.DiLoCo(sgd(model), sync_every=2, outer_format="int8_b128", levels="one")
        losses = []
        for step in range(40):
            outer.zero_grad()
            loss = loss_of(model, 0)
            loss.backward()
            losses.append(loss.item())
            outer.step()
        outer.finish()
        self.check_equal_on_all_ranks(model)
        self.assertLess(losses[-1], losses[0] / 2)
        self.assertEqual(outer.exchanges, 20)

    def resumes(self):
        """In the middle of an exchange, with equal bits."""
        model = Network()
        outer = narrowcast.DiLoCo(sgd(model), outer_optimizer="nesterov", **OPTIONS)
        take_steps(model, outer, 0, 4)
        file = io.BytesIO()
        torch.save({"model": model.state_dict(), "outer": outer.state_dict()}, file)
        file.seek(0)
        saved = torch.load(file)
        fresh = Network()
        again = narrowcast.DiLoCo(sgd(fresh), outer_optimizer="nesterov", **OPTIONS)
        fresh.load_state_dict(saved["model"])
        again.load_state_dict(saved["outer"])
        for step in range(4, 12):
            take_steps(model, outer, step, step + 1)
            take_steps(fresh, again, step, step + 1)
            self.assert_same(flat(fresh), flat(model))
        outer.finish()
        again.finish()
        self.assert_same(flat(fresh), flat(model))
        with self.assertRaisesRegex(ValueError, "the state is of 7 ranks, and there are 2 now: pass the list of all 7 states, not 1"):
            again.load_state_dict({**saved["outer"], "world_size": 7})

    def other_world_size(self):
        """Parameters and outer momentum are the same on all ranks after finish(), so a training that begins with the states of
        another number of ranks has the bits of the one that goes on."""
        model = Network()
        outer = narrowcast.DiLoCo(sgd(model), sync_every=2)
        take_steps(model, outer, 0, 4)
        outer.finish()
        states = [None] * dist.get_world_size()
        dist.all_gather_object(states, outer.state_dict())
        begin, fresh = copy.deepcopy(model.state_dict()), {}
        for count in (1, 3):
            fresh[count] = Network()
            again = narrowcast.DiLoCo(sgd(fresh[count]), sync_every=2)
            fresh[count].load_state_dict(begin)
            again.load_state_dict([{**states[rank % 2], "rank": rank, "world_size": count} for rank in range(count)])
            take_steps(fresh[count], again, 4, 8)
            again.finish()
        take_steps(model, outer, 4, 8)
        outer.finish()
        for each in fresh.values():
            self.assert_same(flat(each), flat(model))
        without = Network()
        without.load_state_dict(begin)
        forgetful = narrowcast.DiLoCo(sgd(without), sync_every=2)
        take_steps(without, forgetful, 4, 8)
        forgetful.finish()
        self.assertFalse(flat(without).equal(flat(model)))  # It has no momentum.
        with self.assertRaisesRegex(ValueError, "saved: must be what state_dict returned, but state 0 has no 'rank'"):
            outer.load_state_dict(outer.optimizer.state_dict())

    def outer_parameters(self):
        """Equal on all ranks within the block; then each rank has its own again, also after an exception."""
        model = Network()
        outer = narrowcast.DiLoCo(sgd(model), sync_every=3)
        begin = flat(model)
        take_steps(model, outer, 0, 2)
        own = flat(model)
        with outer.outer_parameters():
            self.assert_same(flat(model), begin)
            for call in (outer.step, outer.skip_step, outer.finish, outer.outer_parameters().__enter__):
                with self.assertRaisesRegex(ValueError, r"the model has the outer parameters: leave the block of outer_parameters\(\)"):
                    call()
            self.assert_same(flat(model), begin)  # The optimizer has taken no step, either.
        self.assert_same(flat(model), own)
        with self.assertRaises(KeyError), outer.outer_parameters():
            raise KeyError("an evaluation's error")
        self.assert_same(flat(model), own)
        self.assertFalse(own.equal(begin))

    def first_parameters(self):
        """init_sync gives rank 0's parameters to all ranks. Without it they must be equal."""
        torch.manual_seed(dist.get_rank())
        model = Network()
        first = gathered(flat(model))[0]
        with self.assertRaisesRegex(ValueError, "the hash of the parameters, with which local steps begin, differs between ranks"):
            narrowcast.DiLoCo(sgd(model), sync_every=2, init_sync=False)
        narrowcast.DiLoCo(sgd(model), sync_every=2)
        self.assert_same(flat(model).double(), first)
        narrowcast.DiLoCo(sgd(model), sync_every=3, init_sync=False)

    def closure(self):
        """Passed to the optimizer, whose result is returned."""
        model = Network()
        outer = narrowcast.DiLoCo(sgd(model), sync_every=2)

        def closure():
            outer.zero_grad()
            loss = loss_of(model, 0)
            loss.backward()
            return loss

        before = flat(model)
        self.assertGreater(outer.step(closure).item(), 0)
        self.assertFalse(flat(model).equal(before))
        outer.skip_step()
        self.assertEqual(outer.exchanges, 1)
        outer.close()
        with self.assertRaisesRegex(ValueError, "the outer optimizer is closed"):
            outer.step()

    def loss_scaling(self):
        """With a scaler, steps are those without one: scales are powers of 2. Rank 1's gradients of a step are not finite."""
        models = [Network(), Network()]
        models[1].load_state_dict(models[0].state_dict())
        plain, scaled = (narrowcast.DiLoCo(sgd(each), sync_every=2) for each in models)
        scaler = torch.amp.GradScaler("cpu", init_scale=8.)
        for step in range(6):
            skips = step == 3 and dist.get_rank() == 1
            plain.zero_grad()
            loss_of(models[0], step).backward()
            plain.skip_step() if skips else plain.step()
            scaled.zero_grad()
            scaler.scale(loss_of(models[1], step) * (torch.inf if skips else 1)).backward()
            scaler.unscale_(scaled)
            scaler.step(scaled)
            scale = scaler.get_scale()
            scaler.update()
            self.assertEqual(scaler.get_scale() < scale, skips)
            if scaler.get_scale() < scale:
                scaled.skip_step()
            self.assert_same(flat(models[1]), flat(models[0]))
        self.assertEqual(scaled.exchanges, 3)

    def sparse_steps(self):
        """SparseLoCo: residuals are decayed and sent with the next movement, and the outer step takes the mean of what ranks
        send."""
        decay, rate, world = .5, 2., dist.get_world_size()
        model = Network()
        outer = narrowcast.DiLoCo(sgd(model), sync_every=1, outer_optimizer="sgd", outer_learning_rate=rate, outer_format="top2_15",
                                  outer_error_feedback=True, outer_error_decay=decay, node_size=1, link_gbit=1, link_us=50)
        residual = torch.zeros_like(flat(model))
        for step in range(STEPS):
            reference, alone = flat(model), copy.deepcopy(model)
            take_steps(alone, sgd(alone), step, step + 1)
            sent = decay * residual + (reference - flat(alone))
            decoded = torch.ops.narrowcast.decode(torch.ops.narrowcast.encode(sent, "top2_15"), "top2_15", sent.numel())
            residual = sent - decoded
            take_steps(model, outer, step, step + 1)
            torch.testing.assert_close(flat(model), (reference - rate * gathered(decoded).mean(0)).float(), atol=1e-6, rtol=1e-6)
            self.check_equal_on_all_ranks(model)
        self.assertEqual(outer.payload_bytes_sent,
                         STEPS * (world - 1) * torch.ops.narrowcast.encoded_size(residual.numel(), "top2_15"))

    def warm_up(self):
        """In the steps of outer_warmup a DistributedDataParallel averages gradients, and there are no exchanges. Afterwards it does
        nothing. Without averages the last step of the warm-up is an error on all ranks."""
        warmup = 3
        model = Network()
        ddp = wrapped(model)
        narrowcast.register(ddp, "post_local_sgd", outer_warmup=warmup, local_group="none")
        outer = narrowcast.DiLoCo(sgd(model), sync_every=2, outer_warmup=warmup)
        reference = Network()
        reference.load_state_dict(model.state_dict())
        averaged, alone = wrapped(reference), None
        for step in range(warmup + 4):
            self.assertEqual(outer.is_warming_up, step < warmup)
            if step == warmup:  # From here on the steps are those of DiLoCo alone.
                alone = narrowcast.DiLoCo(sgd(reference), sync_every=2)
            take_steps(ddp, outer, step, step + 1)
            take_steps(reference if alone else averaged, alone or sgd(reference), step, step + 1)
            self.assert_same(flat(model), flat(reference))
            self.assertEqual(outer.exchanges, max(0, step + 1 - warmup) // 2)
        model = Network()
        outer = narrowcast.DiLoCo(sgd(model), sync_every=2, outer_warmup=2)
        take_steps(model, outer, 0, 1)
        with self.assertRaisesRegex(ValueError, r"the hash of the parameters after outer_warmup, in whose steps gradients must be averaged "
                                    r"over all ranks \(is_warming_up\), differs between ranks"):
            take_steps(model, outer, 1, 2)

    def changed_parameters(self):
        """Parameters that were not there, or frozen, are never exchanged. No step is taken then."""
        model, added = Network(), torch.nn.Linear(3, 2)
        model.layers[0].weight.requires_grad_(False)
        optimizer = sgd(model)
        outer = narrowcast.DiLoCo(optimizer, sync_every=2)
        take_steps(model, outer, 0, 1)
        model.layers[2].weight.requires_grad_(False)  # Is exchanged as before.
        take_steps(model, outer, 1, 2)
        before = flat(model)

        def check(text):
            for call in (outer.step, outer.skip_step, outer.finish):
                with self.assertRaisesRegex(ValueError, text):
                    call()
            self.assert_same(flat(model), before)

        model.layers[0].weight.requires_grad_(True)
        check(r"a parameter \[160, 61\] of parameter group 0 is new or was frozen when DiLoCo was made")
        model.layers[0].weight.requires_grad_(False)
        optimizer.add_param_group({"params": added.parameters()})
        check(r"a parameter \[2, 3\] of parameter group 1 is new")
        added.requires_grad_(False)
        self.assertEqual(outer.exchanges, 1)
        outer.finish()
        self.check_equal_on_all_ranks(model)

    def wrong_options(self):
        model = Network()

        def making(**options):
            return narrowcast.DiLoCo(sgd(model), **{"sync_every": 2, **options})

        for wrong in (model, list(model.parameters()), None):
            with self.assertRaisesRegex(TypeError, f"optimizer: must be an optimizer, such as .*, but is a {type(wrong).__name__}$"):
                narrowcast.DiLoCo(wrong, sync_every=2)
        with self.assertRaisesRegex(ValueError, "unknown option 'sync'; known: sync_every, .*, first_exchange, init_sync, "
                                    "local_group, silence_seconds$"):
            making(sync=3)
        with self.assertRaisesRegex(ValueError, "sync_every: must be at least 1, but is 0"):
            making(sync_every=0)
        with self.assertRaisesRegex(TypeError, "sync_every: must be int, but is float 2.5"):
            making(sync_every=2.5)
        with self.assertRaisesRegex(ValueError, "sync_every: 2 has no effect with sync_seconds"):
            making(sync_seconds=1.)
        with self.assertRaisesRegex(TypeError, "needs sync_every or sync_seconds"):
            making(sync_every=None)
        with self.assertRaisesRegex(ValueError, "outer_optimizer: .*'?adam"):
            making(outer_optimizer="adam")
        with self.assertRaisesRegex(ValueError, "rank 0: outer_format: .*int9"):
            making(outer_format="int9")
        sparse = {"outer_format": "top2_15", "outer_error_feedback": True}
        with self.assertRaisesRegex(ValueError, "outer_momentum: must be 0 with the outer format top2_15, .*, but is 0.9; use the "
                                    "outer optimizer sgd"):
            making(**sparse)
        with self.assertRaisesRegex(ValueError, "outer_mix: must be 0 with the outer format top2_15, but is 0.5"):
            making(**sparse, outer_optimizer="sgd", outer_mix=.5)
        with self.assertRaisesRegex(ValueError, "outer_format: top2_15 sends only 1.5% .* needs outer_error_feedback"):
            making(outer_format="top2_15", outer_optimizer="sgd")
        with self.assertRaisesRegex(TypeError, "rank 0: outer_format: must be str, but is int 5"):
            making(outer_format=5)
        making(outer_format=None, outer_error_feedback=None, outer_mix=None, levels=None, first_exchange=None).close()
        # Broadcasts of other sizes would end a process.
        with self.assertRaisesRegex(ValueError, "the number of parameters differs between ranks: rank 0 has 6, rank 1 has 2"):
            narrowcast.DiLoCo(sgd(torch.nn.Linear(3, 2) if dist.get_rank() else model), sync_every=2)
        with self.assertRaisesRegex(ValueError, r"parameter 0 differs between ranks: rank 0 has Float \[2, 4\], rank 1 has Float \[2, 3\]"):
            narrowcast.DiLoCo(sgd(torch.nn.Linear(4 - dist.get_rank(), 2)), sync_every=2)
        with self.assertRaisesRegex(ValueError, "sync_every differs between ranks: rank 0 has 2, rank 1 has 3"):
            making(sync_every=2 + dist.get_rank())
        with self.assertRaisesRegex(ValueError, r"sync_every: must be a multiple of fragments \(3\), but is 5"):
            making(sync_every=5, fragments=3)
        outer = making(sync_every=numpy.int64(2), outer_learning_rate=numpy.float32(.5), outer_error_feedback=numpy.bool_(False))
        self.assertRegex(repr(outer), r"^DiLoCo\(SGD, sync_every=.*2.*, outer_optimizer='nesterov', init_sync=True, outer_learning_rate=")
        take_steps(model, outer, 0, 2)

    def one_wrong_rank(self):
        """Its error is an error on all ranks, which change nothing. The group remains usable."""
        is_wrong = dist.get_rank() == 1
        torch.manual_seed(dist.get_rank())
        model = Network()
        before = flat(model)

        def check(error, text, parameters=None, **options):
            with self.subTest(text=text), self.assertRaisesRegex(error, text):
                optimizer = torch.optim.SGD(parameters, lr=RATE) if is_wrong and parameters else sgd(model)
                narrowcast.DiLoCo(optimizer, **{"sync_every": 2, **(options if is_wrong else {})})
            self.assert_same(flat(model), before)

        check(ValueError, "OuterOptimizer on rank 1: unknown option 'sync'", sync=3)
        check(ValueError, "OuterOptimizer on rank 1: sync_every: must be at least 1, but is 0", sync_every=0)
        check(ValueError, "OuterOptimizer on rank 1: outer_mix: must be in 0..1, but is 2", outer_mix=2)
        check(TypeError, "OuterOptimizer on rank 1: sync_every: must be int, but is float 2.5", sync_every=2.5)
        check(TypeError, "OuterOptimizer on rank 1: outer_format: must be a bool, int, float or str, but is dtype",
              outer_format=torch.float16)
        check(ValueError, r"OuterOptimizer on rank 1: fragments: must be an integer of 64 bits, but has 100 bits", fragments=10**30)
        check(ValueError, r"OuterOptimizer on rank 1: fragments: must be an integer of 64 bits, but has 1329 bits", fragments=10**400)
        check(ValueError, "OuterOptimizer on rank 1: parameter 0 of the optimizer is Double",
              parameters=[torch.zeros(3, dtype=torch.double, requires_grad=True)])
        check(ValueError, "OuterOptimizer on rank 1: the optimizer has no parameter", parameters=[torch.zeros(3)])
        check(ValueError, "init_sync differs between ranks: rank 0 has true, rank 1 has false", init_sync=False)
        narrowcast.DiLoCo(sgd(model), sync_every=2)
        self.check_equal_on_all_ranks(model)


class DiLoCo(unittest.TestCase):
    def test_two_ranks(self):
        checks = ("averages", "rounds", "trains", "resumes", "other_world_size", "outer_parameters", "first_parameters", "closure",
                  "sparse_steps", "warm_up", "loss_scaling", "changed_parameters", "wrong_options", "one_wrong_rank")
        self.assertEqual(run_on_ranks(2, OnEachRank(*checks)), [0] * 2)

    def test_three_ranks(self):
        self.assertEqual(run_on_ranks(3, OnEachRank("averages", "trains", "sparse_steps", "one_wrong_rank")), [0] * 3)

    def test_the_training_learns_after_a_warm_up(self):
        learns(self, EXAMPLE, "--node_size=1", "--warmup=20")


def load_tests(loader, _tests, _pattern):
    return loader.loadTestsFromTestCase(DiLoCo)


if __name__ == "__main__":
    unittest.main()

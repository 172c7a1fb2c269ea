"""States of hooks: resuming with equal bits, in other worlds, and states that do not fit."""
import io
import pickle
import unittest

import torch
import torch.distributed as dist

import narrowcast
from narrowcast.ddp_comm_hooks.powerSGD_hook import PowerSGDState, powerSGD_hook
from support.gradients import FLOAT, STEPS, RankTestCase, gathered, trained, wrapped
from support.ranks import run_on_ranks


class Switch:
    """Averages with fp32 until it is on, and then with the hook."""
    is_on = False

    def __init__(self, hook):
        self.hook, self.exact = hook, narrowcast.CommHook("fp32", levels="one")

    def run(self, bucket):
        return (self.hook if Switch.is_on else self.exact).run(bucket)


def saved_and_loaded(state):
    file = io.BytesIO()
    torch.save(state, file)
    file.seek(0)
    return torch.load(file)


def effect_on_means(states, count, name):
    """What the residuals of `count` former ranks add to the next mean of that parameter, in one level."""
    total = torch.zeros_like(states[0][f"residual.{name}"], dtype=torch.double)
    for rank in range(count):
        state = states[rank % len(states)]
        total += state[f"residual.{name}"].double() / count
        if f"mean_residual.{name}" in state:
            mean, begin = state[f"mean_residual.{name}"], state[f"place.{name}"][2]
            total[begin:begin + mean.numel()] += mean.double()
    return total


class OnEachRank(RankTestCase):
    """The program of one rank."""

    def resumes(self):
        """State, saved and loaded by torch.save, gives the bits of a training that goes on. The layout of buckets must be the
        same, so the new DistributedDataParallel has had a pass."""
        for name, options in (("int8", {"error_feedback": True, "stochastic_rounding": 5}), ("var5", {"error_feedback": True}),
                              ("power_sgd", {"power_sgd_start": 1})):
            with self.subTest(hook=name):
                torch.manual_seed(0)
                ddp = wrapped()
                options["levels"] = "one"  # Ranks of one node would round nothing, and have no state.
                hook = narrowcast.register(ddp, name, **options)
                trained(ddp, STEPS)
                saved = saved_and_loaded(hook.state_dict(ddp))
                self.assertTrue(any("residual" in each for each in saved["tensors"]))
                self.check_going_on(ddp, saved, narrowcast.CommHook(name, **options).open("cpu"))

    def check_going_on(self, ddp, saved, resumed):
        going_on = trained(ddp, 2, STEPS)
        torch.manual_seed(0)
        fresh = wrapped()
        fresh.register_comm_hook(Switch(resumed), Switch.run)
        trained(fresh, 2)
        resumed.load_state_dict(saved, fresh)
        Switch.is_on = True
        self.assert_same(trained(fresh, 2, STEPS), going_on)
        Switch.is_on = False

    def power_sgd_state(self):
        """PowerSGDState gets its hook before its state is loaded. It counts as PyTorch's does."""
        options = {"start_powerSGD_iter": 2, "matrix_approximation_rank": 2}
        torch.manual_seed(0)
        ddp = wrapped()
        state = PowerSGDState(None, **options)
        self.assertEqual((state.iter, state.matrix_approximation_rank, state.process_group), (0, 2, None))
        ddp.register_comm_hook(state, powerSGD_hook)
        trained(ddp, STEPS)
        self.assertEqual(state.iter, STEPS)
        saved = saved_and_loaded(state.state_dict(ddp))
        again = PowerSGDState(None, **options)
        with self.assertRaisesRegex(RuntimeError, "the state has no hook before its first bucket, or before open()"):
            again.load_state_dict(saved, ddp)
        self.check_going_on(ddp, saved, again.open("power_sgd", "cpu"))
        self.assertEqual(again.iter, STEPS + 2)
        with self.assertRaisesRegex(AttributeError, "start_powerSGD_iter|no setter"):
            state.start_powerSGD_iter = 5
        with self.assertRaisesRegex(RuntimeError, "process_group: cannot be set any more"):
            state.process_group = dist.group.WORLD

    def pickled_power_sgd_state(self):
        """Before its first bucket, as the launchers that start processes need it. The group is left out, as in PyTorch."""
        with self.assertLogs("narrowcast.ddp_comm_hooks.powerSGD_hook", "WARNING"):
            bytes_of_state = pickle.dumps(PowerSGDState(dist.new_group(), 3, start_powerSGD_iter=2, random_seed=4))
        state = pickle.loads(bytes_of_state)
        self.assertIsNone(state.process_group)
        state.process_group = dist.group.WORLD
        gradients = []
        for each in (state, PowerSGDState(None, 3, start_powerSGD_iter=2, random_seed=4)):
            torch.manual_seed(0)
            ddp = wrapped()
            ddp.register_comm_hook(each, powerSGD_hook)
            gradients.append(trained(ddp, STEPS))
        self.assert_same(*gradients)
        with self.assertRaisesRegex(TypeError, r"that has a hook cannot be pickled or copied: save state_dict\(model\)"):
            pickle.dumps(state)

    def local_sgd(self):
        """Its state is the number of steps in which all ranks average."""
        options = {"outer_warmup": STEPS, "local_group": 1}
        ddp = wrapped()
        hook = narrowcast.register(ddp, "post_local_sgd", **options)
        trained(ddp, STEPS - 1)
        saved = saved_and_loaded(hook.state_dict(ddp))
        fresh = wrapped()
        narrowcast.register(fresh, "post_local_sgd", **options).load_state_dict(saved, fresh)
        for each in (ddp, fresh):
            averaged, own = (gathered(gradients) for gradients in trained(each, 2, STEPS - 1))
            self.assert_same(averaged[1:], averaged[:-1])
            self.assertFalse(own[0].equal(own[1]))

    def other_world_size(self):
        """A state of other ranks needs the list of all of them, and has the same effect on later means."""
        ddp = wrapped()
        hook = narrowcast.register(ddp, "int8", error_feedback=True, levels="one")
        trained(ddp, 1)
        own = hook.state_dict(ddp)
        states = [None] * dist.get_world_size()
        dist.all_gather_object(states, own)
        fresh = narrowcast.register(wrapped(), "int8", error_feedback=True, levels="one")
        for count in (1, 3):
            former = [{**states[rank % 2], "rank": rank, "world_size": count} for rank in range(count)]
            for saved in (former, tuple(former)):
                fresh.load_state_dict(saved, ddp)
                taken = fresh.state_dict(ddp)["tensors"]
                for name, parameter in ddp.module.named_parameters():
                    shared = gathered(taken.get(f"shared.{name}", torch.zeros(parameter.numel())))
                    expected = effect_on_means([each["tensors"] for each in states], count, name)
                    # Four roundings of each rank's number: its two terms, their sum, and the sum over former ranks.
                    allowed = 4 * FLOAT * shared.abs().sum(0) + 1e-30
                    self.assertLessEqual(((shared.mean(0) - expected).abs() - allowed).max(), 0, name)
                    self.assertGreater(expected.abs().max(), 0)
        self.wrong_states(fresh, ddp, states)

    def wrong_states(self, fresh, ddp, states):
        own = states[dist.get_rank()]
        with self.assertRaisesRegex(ValueError, r"in the order of their ranks, 0 to 1, but are of ranks \[1, 0\]"):
            fresh.load_state_dict(states[::-1], ddp)
        with self.assertRaisesRegex(ValueError, f"the state is of rank {1 - dist.get_rank()}, but this is rank {dist.get_rank()}"):
            fresh.load_state_dict(states[1 - dist.get_rank()], ddp)
        with self.assertRaisesRegex(ValueError, "the state is of 7 ranks, and there are 2 now: pass the list of all 7 states, not 1"):
            fresh.load_state_dict({**own, "world_size": 7}, ddp)
        with self.assertRaisesRegex(ValueError, "the state is of hook 'int4', but the hook is 'int8'"):
            fresh.load_state_dict({**own, "hook": "int4"}, ddp)
        with self.assertRaisesRegex(ValueError, "saved: must be a state or the states of all ranks, but is empty"):
            fresh.load_state_dict([], ddp)
        with self.assertRaisesRegex(ValueError, "saved: must be what state_dict returned, but state 0 has no 'rank'"):
            fresh.load_state_dict(ddp.state_dict(), ddp)
        with self.assertRaisesRegex(ValueError, "saved: must be what state_dict returned, but state 1 has no 'tensors'"):
            fresh.load_state_dict([states[0], {"rank": 1, "world_size": 2, "hook": "int8"}], ddp)
        with self.assertRaisesRegex(TypeError, "saved: must be .*, but state 0 is a str"):
            fresh.load_state_dict("hook0.pt", ddp)
        with self.assertRaisesRegex(TypeError, "cannot be pickled"):
            pickle.dumps(fresh)
        self.assertEqual(pickle.loads(pickle.dumps(narrowcast.CommHook("int4"))).name, "int4")

    def other_parameters(self):
        """A parameter that is frozen after a step keeps its state. Parameters that the model does not have are errors."""
        for name, options in (("int8", {"error_feedback": True}), ("auto", {"error_feedback": True, "link_gbit": 1e-4, "link_us": 50}),
                              ("power_sgd", {"power_sgd_start": 1}), ("batched_power_sgd", {"power_sgd_start": 1})):
            with self.subTest(hook=name):
                ddp, other = wrapped(), torch.nn.Linear(3, 2)
                hook = narrowcast.register(ddp, name, levels="one", **options)
                trained(ddp, STEPS)
                before = hook.state_dict(ddp)
                ddp.module.layers[0].weight.requires_grad_(False)
                saved = hook.state_dict(ddp)
                self.assertEqual(list(saved["tensors"]), list(before["tensors"]))
                self.assertTrue(any("layers.0.weight" in each for each in saved["tensors"]))
                hook.load_state_dict(saved, ddp)
                for each, tensor in hook.state_dict(ddp)["tensors"].items():
                    self.assertTrue(tensor.equal(saved["tensors"][each]), each)
                with self.assertRaisesRegex(ValueError, "the hook has state of a parameter that is not among the 2 given ones, "
                                            "'weight' to 'bias': give the parameters of the model with this hook"):
                    hook.state_dict(other)
                fresh = narrowcast.CommHook(name, levels="one", **options).open("cpu")
                with self.assertRaisesRegex(ValueError, "its state is of parameters, but none are given|parameters that the model does"):
                    fresh.load_state_dict(saved, torch.nn.Identity())
                for saved_states in (saved, [{**saved, "rank": rank, "world_size": 3} for rank in range(3)]):
                    with self.assertRaisesRegex(ValueError, "the saved state is of parameters that the model does not have: "
                                                "'layers.0.bias', 'layers.0.weight', 'layers.2.bias'"):
                        fresh.load_state_dict(saved_states, other)


class HookStates(unittest.TestCase):
    def test_two_ranks(self):
        checks = ("resumes", "power_sgd_state", "pickled_power_sgd_state", "local_sgd", "other_world_size", "other_parameters")
        self.assertEqual(run_on_ranks(2, OnEachRank(*checks)), [0] * 2)


def load_tests(loader, _tests, _pattern):
    return loader.loadTestsFromTestCase(HookStates)


if __name__ == "__main__":
    unittest.main()

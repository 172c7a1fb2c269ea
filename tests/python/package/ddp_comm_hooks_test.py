"""narrowcast.ddp_comm_hooks: the bits, names and arguments of torch.distributed.algorithms.ddp_comm_hooks."""
import importlib
import inspect
import subprocess
import sys
import types
import unittest
import warnings
from unittest import mock

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.algorithms.ddp_comm_hooks import DDPCommHookType as TypesOfPyTorch
from torch.distributed.algorithms.ddp_comm_hooks import register_ddp_comm_hook as register_ddp_comm_hook_of_pytorch
from torch.nn.parallel import DistributedDataParallel

import narrowcast
from narrowcast.ddp_comm_hooks import DDPCommHookType, register_ddp_comm_hook
from support.gradients import Matrices, Network, RankTestCase, loss_of, trained, wrapped, wrapped_with_buckets
from support.ranks import run_on_ranks
from support.upstream import running_on_gloo

warnings.filterwarnings("ignore", category=UserWarning, module="torch.ao.quantization")
warnings.filterwarnings("ignore", message="torch.ao.quantization is deprecated")
MODULES = ("ddp_zero_hook", "debugging_hooks", "default_hooks", "optimizer_overlap_hooks", "post_localSGD_hook", "powerSGD_hook",
           "quantization_hooks")
# Prints the attributes of modules that `import narrowcast` and PyTorch's package alone give.
NAMES = """
import inspect, narrowcast, torch.distributed.algorithms.ddp_comm_hooks as theirs
for name in (*narrowcast.__all__, "fsdp.QuantizedReduceScatter"):
    eval(f"narrowcast.{name}")
for name, module in inspect.getmembers(theirs, inspect.ismodule):
    if module.__name__.startswith(theirs.__name__):
        print(name, getattr(narrowcast.ddp_comm_hooks, name).__name__.rpartition(".")[2] == module.__name__.rpartition(".")[2])
"""
STEPS = 5
START = 2  # The step at which PowerSGD and local SGD begin.


def modules_of(package):
    return types.SimpleNamespace(**{each: importlib.import_module(f"{package}.{each}") for each in MODULES})


OURS = modules_of("narrowcast.ddp_comm_hooks")
PYTORCH = modules_of("torch.distributed.algorithms.ddp_comm_hooks")


def power_sgd_state(package, **options):
    return package.powerSGD_hook.PowerSGDState(None, start_powerSGD_iter=START, **options)


def power_sgd(**options):
    return lambda package: (power_sgd_state(package, **options), package.powerSGD_hook.powerSGD_hook)


def batched_power_sgd(**options):
    return lambda package: (power_sgd_state(package, **options), package.powerSGD_hook.batched_powerSGD_hook)


def local_sgd(size, **options):
    def state_and_hook(package):
        module = package.post_localSGD_hook
        subgroup, _ = dist.new_subgroups(size or dist.get_world_size())
        return module.PostLocalSGDState(None, subgroup, START, **options), module.post_localSGD_hook
    return state_and_hook


def channels_of_100(package):
    hook = package.quantization_hooks.quantization_perchannel_hook
    return None, lambda group, bucket: hook(group, bucket, bucket_size=100)


# The state and function to register, for a package with the modules of PyTorch.
CASES = {
    "allreduce": lambda package: (None, package.default_hooks.allreduce_hook),
    "fp16_compress": lambda package: (None, package.default_hooks.fp16_compress_hook),
    "bf16_compress": lambda package: (dist.group.WORLD, package.default_hooks.bf16_compress_hook),
    "bf16 around a hook": lambda package: (
        None, package.default_hooks.bf16_compress_wrapper(package.default_hooks.allreduce_hook)),
    "quantization_pertensor": lambda package: (None, package.quantization_hooks.quantization_pertensor_hook),
    "quantization_perchannel": lambda package: (None, package.quantization_hooks.quantization_perchannel_hook),
    "channels of 100": channels_of_100,
    "PowerSGD": power_sgd(),
    "PowerSGD of rank 2": power_sgd(matrix_approximation_rank=2, random_seed=7),
    "PowerSGD without error feedback": power_sgd(use_error_feedback=False, min_compression_rate=4),
    "PowerSGD without warm start": power_sgd(warm_start=False, orthogonalization_epsilon=1e-8),
    "PowerSGD in batches": power_sgd(batch_tensors_with_same_shape=True),
    "batched PowerSGD": batched_power_sgd(),
    "batched PowerSGD of rank 2": batched_power_sgd(matrix_approximation_rank=2, use_error_feedback=False),
    "local SGD in one group": local_sgd(0),
    "local SGD without groups": local_sgd(1),
    "local SGD without gradients' means": local_sgd(0, post_local_gradient_allreduce=False),
}
# PyTorch's wrapper, and its PowerSGD with numbers in half precision; narrowcast's has float32 in any case.
WRAPPED = {"fp16 around PowerSGD": lambda package: (
    power_sgd_state(package), package.default_hooks.fp16_compress_wrapper(package.powerSGD_hook.powerSGD_hook))}
IN_PAIRS = {"local SGD in pairs": local_sgd(2)}
EXACT = ("allreduce", "local SGD in one group")


class Task(nn.Module):
    """A layer whose inputs differ between ranks, as in PyTorch's own test of its hooks. Gradients are positive and about
    1/100: sums of terms that cancel could exceed a relative tolerance."""

    def __init__(self):
        super().__init__()
        torch.manual_seed(0)
        self.layer = nn.Linear(20, 40, bias=False)

    def forward(self, x):
        return self.layer(x**(1 + dist.get_rank())).tanh()


def task_gradient(hook_type=None, group=None):
    model = DistributedDataParallel(Task())
    if hook_type is not None:
        register_ddp_comm_hook(comm_hook_type=hook_type, model=model, state=group)
    torch.manual_seed(2020)
    model(torch.rand(40, 20)).mean().backward()
    return model.module.layer.weight.grad


class OnEachRank(RankTestCase):
    """The program of one rank."""

    def task(self):
        """PyTorch's own assertions about these hooks, with its tolerances."""
        exact = task_gradient()
        tolerances = {"ALLREDUCE": 0, "FP16_COMPRESS": 1e-4, "BF16_COMPRESS": 1e-4, "QUANTIZE_PER_TENSOR": 1e-4,
                      "QUANTIZE_PER_CHANNEL": 1e-4}
        for name, tolerance in tolerances.items():
            with self.subTest(hook=name):
                gradient = task_gradient(DDPCommHookType[name], dist.group.WORLD)
                torch.testing.assert_close(gradient, exact, rtol=1e-5, atol=tolerance)
                if name != "ALLREDUCE":
                    self.assertFalse(gradient.equal(exact))
        own = task_gradient(DDPCommHookType.NOOP)
        self.assertFalse(own.equal(exact))
        dist.all_reduce(own.div_(dist.get_world_size()))
        torch.testing.assert_close(own, exact, rtol=1e-5, atol=0)

    def is_last(self):
        """Functions around a hook see its buckets; only the final one is the last."""
        flags = []

        def recording(group, bucket):
            flags.append(bucket.is_last())
            return OURS.default_hooks.allreduce_hook(group, bucket)

        ddp = wrapped_with_buckets(Matrices())
        ddp.register_comm_hook(None, recording)
        for _ in range(2):
            flags.clear()
            trained(ddp, 1)
            self.assertGreater(len(flags), 1)
            self.assertEqual(flags, [False] * (len(flags) - 1) + [True])

    def same_bits(self):
        exact = self.gradients_of("allreduce", PYTORCH)
        for name in CASES:
            with self.subTest(case=name):
                expected = self.gradients_of(name, PYTORCH)
                self.check_same(self.gradients_of(name, OURS), expected, "PowerSGD" in name)
                self.assertEqual(expected[-1].equal(exact[-1]), name in EXACT)

    def check_same(self, actual, expected, is_power_sgd):
        """Products of PowerSGD are summed in another order from three ranks on, and its steps keep the difference."""
        if is_power_sgd and dist.get_world_size() > 2:
            for means, means_of_pytorch in zip(actual, expected):
                self.assertLess((means - means_of_pytorch).norm() / means_of_pytorch.norm(), 1e-5)
        else:
            self.assert_same(actual, expected)

    def gradients_of(self, case, package):
        torch.manual_seed(0)
        ddp = wrapped(Matrices())
        ddp.register_comm_hook(*(CASES | WRAPPED | IN_PAIRS)[case](package))
        with running_on_gloo():
            return trained(ddp, STEPS)

    def around_power_sgd(self):
        """Before PowerSGD begins, bits are PyTorch's. Later, gradients are those without the wrapper, but for one rounding to
        half precision: of 2^-11 or, as many gradients are subnormal halves, some more."""
        name, = WRAPPED
        ours = self.gradients_of(name, OURS)
        self.assert_same(ours[:START], self.gradients_of(name, PYTORCH)[:START])
        for wrapped_mean, mean in zip(ours, self.gradients_of("PowerSGD", OURS)):
            error = (wrapped_mean - mean).norm() / mean.norm()
            self.assertLess(error, .01)
            self.assertGreater(error, 0)

    def local_groups(self):
        """Local SGD in pairs of ranks."""
        self.assert_same(self.gradients_of("local SGD in pairs", OURS), self.gradients_of("local SGD in pairs", PYTORCH))
        subgroup, _ = dist.new_subgroups_by_enumeration([[0, 2], [1, 3]])
        with self.assertRaisesRegex(ValueError, r"rank 0: subgroup: must be one of equal groups of consecutive ranks of "
                                    r"\[0, 1, 2, 3\], but has the ranks \[0, 2\]"):
            OURS.post_localSGD_hook.PostLocalSGDState(None, subgroup, START).open("cpu")

    def subgroup_of_one_rank(self):
        """If it is wrong, all ranks raise the error, and the group remains usable."""
        last = dist.get_world_size() - 1
        pair, without_last = dist.new_group([last - 1, last]), dist.new_group([0])
        cases = {"this rank is not in it": without_last}
        if last == 2:
            cases[r"consecutive ranks of \[0, 1, 2\], but has the ranks \[1, 2\]"] = pair
        for text, subgroup in cases.items():
            with self.subTest(text=text):
                ddp = wrapped()
                own = subgroup if dist.get_rank() == last else dist.group.WORLD
                ddp.register_comm_hook(OURS.post_localSGD_hook.PostLocalSGDState(None, own, START),
                                       OURS.post_localSGD_hook.post_localSGD_hook)
                with self.assertRaisesRegex(ValueError, f"create_comm_hook on rank {last}: subgroup: .*{text}"):
                    trained(ddp, 1)
        register_ddp_comm_hook(DDPCommHookType.INT8, ddp := wrapped())
        trained(ddp, 1)

    def without_cuda(self):
        """PyTorch refuses hooks by their names if torch is built without CUDA. These work with Gloo."""
        with mock.patch.object(torch.version, "cuda", None):
            with self.assertRaisesRegex(TypeError, "BF16 all reduce communication hook required CUDA"):
                wrapped().register_comm_hook(*CASES["bf16_compress"](PYTORCH))
            for name, case in CASES.items():
                with self.subTest(case=name):
                    wrapped().register_comm_hook(*case(OURS))

    def power_sgd_arguments(self):
        """The members take PyTorch's arguments. An error of one rank is an error on all."""
        members = {"POWER_SGD": {}, "POWER_SGD_RANK2": {"matrix_approximation_rank": 3}, "BATCHED_POWER_SGD_RANK2": {}}
        for name, arguments in members.items():
            with self.subTest(member=name):
                gradients = []
                for types_of in (DDPCommHookType, TypesOfPyTorch):
                    torch.manual_seed(0)
                    ddp = wrapped(Matrices())
                    types_of[name].value(model=ddp, state=None, start_powerSGD_iter=START, **arguments)
                    with running_on_gloo():
                        gradients.append(trained(ddp, STEPS))
                self.check_same(*gradients, is_power_sgd=True)
        with self.assertRaisesRegex(ValueError, "create_comm_hook on rank 1: start_powerSGD_iter: must be at least 2"):
            DDPCommHookType.POWER_SGD.value(model=wrapped(), start_powerSGD_iter=2 - dist.get_rank())

    def overlapped_optimizer(self):
        """PyTorch's function takes a hook of narrowcast: the parameters change in the backward pass."""
        models = []
        for package in (PYTORCH, OURS):
            torch.manual_seed(0)
            ddp = wrapped(Matrices())
            module = package.optimizer_overlap_hooks
            steps = module._OptimizerHookState(types.SimpleNamespace(
                step_param=lambda parameter, gradient: parameter.data.sub_(gradient, alpha=.1)))
            ddp.register_comm_hook(None, module._hook_then_optimizer(package.default_hooks.allreduce_hook, steps))
            before = [each.detach().clone() for each in ddp.parameters()]
            trained(ddp, 2)
            self.assertFalse(any(each.equal(old) for each, old in zip(ddp.parameters(), before)))
            models.append([each.detach() for each in ddp.parameters()])
        self.assert_same(*models)

    def formats(self):
        """Members that PyTorch does not have are hooks of the same name."""
        for member in DDPCommHookType:
            if member.name in TypesOfPyTorch.__members__ or member is DDPCommHookType.AUTO:
                continue
            with self.subTest(hook=member.name):
                first, second = wrapped(), wrapped()
                second.load_state_dict(first.state_dict())
                register_ddp_comm_hook(member, first)
                narrowcast.register(second, member.name.lower())
                self.assert_same(trained(first, 2), trained(second, 2))

    def wrong_states(self):
        state = OURS.powerSGD_hook.PowerSGDState(None, start_powerSGD_iter=START)
        with self.assertRaisesRegex(RuntimeError, "has no hook before its first bucket"):
            state.hook
        first, second = wrapped(), wrapped()
        first.register_comm_hook(state, OURS.powerSGD_hook.powerSGD_hook)
        second.register_comm_hook(state, OURS.powerSGD_hook.batched_powerSGD_hook)
        trained(first, 1)
        with self.assertRaisesRegex(ValueError, "cannot be shared: it belongs to power_sgd, and batched_power_sgd was asked for"):
            trained(second, 1)
        trained(first, 1)
        for options in ({}, {"use_error_feedback": False}, {"warm_start": False}):
            with self.assertRaisesRegex(ValueError, "start_powerSGD_iter: must be at least 2 .*but is 1"):
                OURS.powerSGD_hook.PowerSGDState(None, start_powerSGD_iter=1, **options)
        OURS.powerSGD_hook.PowerSGDState(None, start_powerSGD_iter=1, use_error_feedback=False, warm_start=False)
        mistyped = OURS.powerSGD_hook.PowerSGDState(None, "1" if dist.get_rank() == 1 else 1)
        with self.assertRaisesRegex(TypeError, "create_comm_hook on rank 1: power_sgd_rank: must be int, but is str"):
            mistyped.open(device="cpu")
        third = wrapped()
        third.register_comm_hook(OURS.powerSGD_hook.PowerSGDState(None, min_compression_rate=3),
                                 OURS.powerSGD_hook.batched_powerSGD_hook)
        with self.assertRaisesRegex(ValueError, "power_sgd_min_rate: .*has no effect with the hook 'batched_power_sgd'"):
            trained(third, 1)


def names_of(module):
    """Of PyTorch's module. Some have no __all__."""
    theirs = getattr(PYTORCH, module)
    return getattr(theirs, "__all__", None) or [name for name, each in vars(theirs).items() if getattr(
        each, "__module__", "") == theirs.__name__ and not name.startswith("_")]


class DdpCommHooks(unittest.TestCase):
    def test_names_are_there_without_further_imports(self):
        output = subprocess.run([sys.executable, "-W", "ignore", "-c", NAMES], check=True, stdout=subprocess.PIPE, text=True).stdout
        self.assertIn("powerSGD True\n", output)
        self.assertNotIn("False", output)

    def test_names_and_arguments_are_those_of_pytorch(self):
        compared = 0
        for module in MODULES:
            self.assertEqual(sorted(getattr(OURS, module).__all__), sorted(names_of(module)))
            for name in getattr(OURS, module).__all__:
                with self.subTest(name=f"{module}.{name}"):
                    self.check_arguments(*(getattr(getattr(each, module), name) for each in (OURS, PYTORCH)))
                    compared += 1
        self.assertEqual(compared, 15)
        self.check_arguments(register_ddp_comm_hook, register_ddp_comm_hook_of_pytorch)

    def check_arguments(self, ours, theirs):
        ours, theirs = (inspect.signature(each).parameters.values() for each in (ours, theirs))
        self.assertEqual([(each.name, each.default, each.kind) for each in ours],
                         [(each.name, each.default, each.kind) for each in theirs])

    def test_members_take_the_arguments_of_pytorch(self):
        for name, theirs in TypesOfPyTorch.__members__.items():
            with self.subTest(member=name):
                ours = inspect.signature(DDPCommHookType[name].value).parameters
                for argument, parameter in inspect.signature(theirs.value).parameters.items():
                    if argument != "comm_hook":  # It is part of the member.
                        self.assertIn(argument, ours)
                        if parameter.default is not inspect.Parameter.empty:
                            self.assertEqual(ours[argument].default, parameter.default)

    def test_names_that_are_missing_say_why(self):
        with self.assertRaisesRegex(ImportError, "narrowcast has no mixed_precision_hooks: .*use torch.autocast"):
            importlib.import_module("narrowcast.ddp_comm_hooks.mixed_precision_hooks")
        with self.assertRaisesRegex(AttributeError, "narrowcast has no _apply_optim_in_backward_hook, because"):
            OURS.optimizer_overlap_hooks._apply_optim_in_backward_hook

    def test_two_ranks(self):
        checks = ("task", "is_last", "same_bits", "around_power_sgd", "formats", "subgroup_of_one_rank", "wrong_states",
                  "without_cuda", "power_sgd_arguments", "overlapped_optimizer")
        self.assertEqual(run_on_ranks(2, OnEachRank(*checks)), [0] * 2)

    def test_three_ranks(self):
        self.assertEqual(run_on_ranks(3, OnEachRank("task", "same_bits", "subgroup_of_one_rank")), [0] * 3)

    def test_four_ranks(self):
        self.assertEqual(run_on_ranks(4, OnEachRank("task", "local_groups")), [0] * 4)


def load_tests(loader, _tests, _pattern):
    return loader.loadTestsFromTestCase(DdpCommHooks)


if __name__ == "__main__":
    unittest.main()

"""The hook of docs/examples/ddp_from_python.py: its means, its order, its errors when ranks fail; and the training."""
import copy
import datetime
import importlib.util
import os
import pathlib
import re
import signal
import subprocess
import sys
import unittest

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.algorithms.ddp_comm_hooks import default_hooks
from torch.nn.parallel import DistributedDataParallel

from support.exact import ExactTestCase
from support.ranks import run_on_ranks

ROOT = pathlib.Path(__file__).resolve().parents[2]
EXAMPLE = ROOT / "docs/examples/ddp_from_python.py"


def imported(file):
    spec = importlib.util.spec_from_file_location(file.stem, file)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


example = imported(EXAMPLE)
SHORT = datetime.timedelta(seconds=3)  # Time-out of all-reduces that fail, or are quick.
CPU = torch.device("cpu")
BUCKET = .02  # MiB: several buckets, once they are rebuilt.
STEPS = 3  # That comes after the first one.
FLOAT = 2.0**-24  # Largest relative error of a rounding.
BFLOAT16 = 2.0**-8
DIFFERENCE = "ValueError: quantized_all_reduce: format differs between ranks: rank 0 has int8_b128, rank 1 has bf16"
# Integer formats: the number of elements of a block, and its greatest code.
BLOCKS = {"int8_b32": (32, 127), "int8_b128": (128, 127), "int8_b256": (256, 127), "int6_b32": (32, 31), "int4_b32": (32, 7)}
# Variable formats: bits per element.
VARIABLE = {"var5": 5}


class Network(nn.Module):
    """Gradients of 27 thousand elements, most of them in matrices. `branch` is used on request, `unused` never."""

    def __init__(self, has_branches=False):
        super().__init__()
        self.layers = nn.Sequential(nn.Linear(61, 160), nn.Tanh(), nn.Linear(160, 100), nn.Tanh(), nn.Linear(100, 7))
        self.branch = nn.Linear(61, 7) if has_branches else None
        self.unused = nn.Linear(3, 5) if has_branches else None

    def forward(self, x, takes_branch=False):
        return self.layers(x) + (self.branch(x) if takes_branch else 0)


def loss_of(model, step, **arguments):
    """The loss of a batch that only this rank has."""
    generator = torch.Generator().manual_seed(1000 * step + dist.get_rank())
    x = torch.randn(16, 61, generator=generator).to(next(model.parameters()).dtype)
    return (1 + dist.get_rank()) * model(x, **arguments).square().mean()


def gathered(tensor):
    """The tensors of all ranks: [ranks, elements], in float64."""
    of_ranks = [torch.empty_like(tensor) for _ in range(dist.get_world_size())]
    dist.all_gather(of_ranks, tensor.contiguous())
    return torch.stack(of_ranks).flatten(1).double()


def own_gradients(model, step, **arguments):
    """Gradients by name, without DistributedDataParallel; zeros for a parameter without a gradient."""
    alone = copy.deepcopy(model)
    alone.zero_grad()
    loss_of(alone, step, **arguments).backward()
    return {name: torch.zeros_like(each) if each.grad is None else each.grad for name, each in alone.named_parameters()}


def learns(test, program, *flags):
    """Checks that the loss of an example's training falls on two ranks."""
    command = [sys.executable, "-m", "torch.distributed.run", "--nproc_per_node=2", "--standalone", str(program),
               f"--library={os.environ['NARROWCAST_OPS_LIBRARY']}", f"--data={ROOT / 'README.md'}", "--steps=60", *flags]
    output = subprocess.run(command, check=True, stdout=subprocess.PIPE, text=True).stdout
    losses = [float(loss) for loss in re.findall(r"loss ([\d.]+)", output)]
    test.assertGreater(losses[0], 5, output)  # For uniform bytes it is log 256 = 5.5.
    test.assertLess(losses[-1], 3, output)


def in_blocks(numbers, size):
    """[..., n] as [..., blocks, size], padded with zeros."""
    return nn.functional.pad(numbers, (0, -numbers.shape[-1] % size)).unflatten(-1, (-1, size))


def most_step(numbers, bits):
    """An upper bound [..., 1] of the step of a variable format's message of `numbers` [..., n], or of numbers that are not
    larger in magnitude. The codes of all blocks fit with this step, if each block has its largest magnitude on both sides.
    """
    largest = in_blocks(numbers.abs(), 32).amax(-1)
    blocks = largest.shape[-1]
    words = (max(4 * bits * blocks, 36) - 2 - blocks) // 4  # A block has a word for each bit of its codes.
    high = largest.amax(-1, keepdim=True)  # 2 bits for each block.
    low = high / 2**13
    for _ in range(16):
        step = (low + high) / 2
        widths = 1 + (largest / step + .51).log2().ceil().clamp(min=1)
        fit = widths.sum(-1, keepdim=True) <= words
        low, high = torch.where(fit, low, step), torch.where(fit, step, high)
    return (1 + 2**-7)**2 * high  # Extents and steps are bfloat16, rounded up.


def half_steps(numbers, wire_format):
    """The largest rounding error of each of `numbers` [..., n], or of numbers that are not larger in magnitude."""
    if wire_format == "fp32":
        return torch.zeros_like(numbers)
    if wire_format == "bf16":
        return BFLOAT16 * numbers.abs()
    if wire_format in VARIABLE:
        return most_step(numbers, VARIABLE[wire_format]) / 2 + 4 * FLOAT * numbers.abs()
    size, greatest = BLOCKS[wire_format]
    padded = in_blocks(numbers.abs(), size)
    largest = padded.amax(-1, keepdim=True).expand_as(padded).flatten(-2)[..., :numbers.shape[-1]]
    return (1 + 2**-7) * largest / greatest / 2  # A scale is the least bfloat16 with which the largest number fits.


def tolerance(own, wire_format):
    """The largest error of means of `own` [ranks, elements of a bucket]: one rounding of each rank's message, with three
    ranks or more one rounding of the mean, and the roundings of a sum in float32."""
    world_size = own.shape[0]
    magnitudes = own.abs() + half_steps(own, wire_format)
    errors = half_steps(own, wire_format).sum(0) / world_size
    if world_size > 2:
        errors += half_steps(magnitudes.sum(0) / world_size, wire_format)
    return errors + (world_size + 2) * FLOAT * magnitudes.sum(0) / world_size


class OnEachRank(ExactTestCase):
    """The program of one rank; not a test by itself. `checks`: names of the methods to run, one after the other, because
    starting ranks takes longer than most of them."""

    def __init__(self, *checks):
        super().__init__()
        self.checks = checks

    def runTest(self):
        torch.set_num_threads(1)
        for check in self.checks:
            with self.subTest(check=check):
                torch.manual_seed(0)
                getattr(self, check)()

    def means(self):
        for wire_format in ("fp32", "bf16", *BLOCKS, *VARIABLE):
            with self.subTest(wire_format=wire_format):
                self.means_of(wire_format, torch.float32)

    def means_of_bfloat16(self):
        self.means_of("int8_b128", torch.bfloat16)

    def means_of(self, wire_format, dtype):
        """Compares several steps with the mean of the ranks' own gradients."""
        model = Network().to(dtype)
        ddp = DistributedDataParallel(model, bucket_cap_mb=BUCKET)
        with example.QuantizedMean(wire_format, CPU) as state:
            layouts = self.register_recording(ddp, state, example.quantized_mean_hook)
            for step in range(STEPS):
                ddp.zero_grad()
                loss_of(ddp, step).backward()
                own = own_gradients(model, step)
                for names in layouts[step]:
                    self.check_bucket(model, own, names, wire_format)
        self.assertGreater(len(layouts[-1]), 1)

    def register_recording(self, ddp, state, hook):
        """Returns a list that gets the names of the parameters in each bucket of each step."""
        names = {each: name for name, each in ddp.module.named_parameters()}
        layouts = []

        def recording(state, bucket):
            if bucket.index() == 0:
                layouts.append([])
            layouts[-1].append([names[each] for each in bucket.parameters()])
            return hook(state, bucket)

        ddp.register_comm_hook(state, recording)
        return layouts

    def check_bucket(self, model, own, names, wire_format):
        means = torch.cat([model.get_parameter(name).grad.flatten() for name in names])
        of_ranks = gathered(torch.cat([own[name].flatten() for name in names]))
        for of_rank in gathered(means):
            self.assert_same(of_rank, means.double())
        error = (means.double() - of_ranks.mean(0)).abs()
        allowed = tolerance(of_ranks, wire_format)
        if means.dtype == torch.bfloat16:  # The sum is rounded once more.
            allowed += BFLOAT16 * (of_ranks.mean(0).abs() + allowed)
        self.assertLessEqual((error - allowed).max(), 0)
        # Rounding to the format must be visible: at some element at least a tenth of the allowed error.
        self.assertGreater((error - .1 * allowed).max(), 0)

    def beside_bf16_compress(self):
        """PyTorch's hook divides, then sums in bfloat16; the operator sums in float32, and divides."""
        for step in range(STEPS):
            ours, theirs = self.gradients_of_both(step)
            own = gathered(torch.cat([each.flatten() for each in own_gradients(self.model, step).values()]))
            world_size = dist.get_world_size()
            if world_size == 2:  # The only difference: PyTorch's sum is rounded.
                self.assert_same(ours.bfloat16(), theirs.bfloat16())
            # PyTorch rounds once in the cast, once in the division, and in each of W - 1 additions.
            allowed = tolerance(own, "bf16") + ((1 + BFLOAT16)**(world_size + 1) - 1) * own.abs().sum(0) / world_size
            self.assertLessEqual(((ours - theirs).double().abs() - allowed).max(), 0)
            self.assertFalse(torch.equal(ours, theirs))

    def gradients_of_both(self, step):
        results = []
        for wire_format in ("bf16", None):
            torch.manual_seed(0)
            self.model = Network()
            ddp = DistributedDataParallel(self.model, bucket_cap_mb=BUCKET)
            with example.QuantizedMean(wire_format, CPU) as state:
                if wire_format:
                    ddp.register_comm_hook(state, example.quantized_mean_hook)
                else:
                    ddp.register_comm_hook(None, default_hooks.bf16_compress_hook)
                loss_of(ddp, step).backward()
            results.append(torch.cat([each.grad.flatten() for each in self.model.parameters()]))
        return results

    def unused_parameters(self):
        """Only rank 0 uses a branch of the network."""
        self.under_options(dist.get_rank() == 0, find_unused_parameters=True)

    def static_graph(self):
        self.under_options(True, static_graph=True, gradient_as_bucket_view=True)

    def under_options(self, takes_branch, **options):
        model = Network(has_branches=True)
        ddp = DistributedDataParallel(model, bucket_cap_mb=BUCKET, **options)
        branch = {"takes_branch": takes_branch}
        with example.QuantizedMean("fp32", CPU) as state:
            ddp.register_comm_hook(state, example.quantized_mean_hook)
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

    def accumulated(self):
        """Two passes; the second one averages the sum of both."""
        model = Network()
        ddp = DistributedDataParallel(model, bucket_cap_mb=BUCKET)
        with example.QuantizedMean("fp32", CPU) as state:
            ddp.register_comm_hook(state, example.quantized_mean_hook)
            own = own_gradients(model, 0)
            with ddp.no_sync():
                loss_of(ddp, 0).backward()
            self.assert_same([each.grad for each in model.parameters()], list(own.values()))
            loss_of(ddp, 1).backward()
        second = own_gradients(model, 1)
        self.check_gradients(model, {name: own[name] + second[name] for name in own})

    def uneven_inputs(self):
        """Rank 1 has a step more than rank 0, whose gradients are zeros in that step."""
        model = Network()
        ddp = DistributedDataParallel(model, bucket_cap_mb=BUCKET)
        with example.QuantizedMean("fp32", CPU) as state:
            ddp.register_comm_hook(state, example.quantized_mean_hook)
            with ddp.join():
                for step in range(1 + dist.get_rank()):
                    ddp.zero_grad()
                    loss_of(ddp, step).backward()
        own = own_gradients(model, 1)
        if dist.get_rank() == 1:
            for name, each in model.named_parameters():
                # A mean with zeros: a sum of one term, halved.
                self.assert_same(each.grad, own[name] / 2)

    def overlapped(self):
        """Rank 0's hook gets all buckets before rank 1 has one, so nothing in rank 0's hook may wait."""
        ddp = DistributedDataParallel(Network(), bucket_cap_mb=BUCKET)
        store = dist.distributed_c10d._get_default_store()

        def reporting(state, bucket):
            future = example.quantized_mean_hook(state, bucket)
            if dist.get_rank() == 0 and bucket.is_last():
                store.set(f"rank 0 has all buckets of step {step}", "")
            return future

        with example.QuantizedMean("int8_b128", CPU, SHORT) as state:
            ddp.register_comm_hook(state, reporting)
            for step in range(STEPS):
                loss = loss_of(ddp, step)
                if dist.get_rank() == 1:
                    store.wait([f"rank 0 has all buckets of step {step}"], 10 * SHORT)
                loss.backward()

    def a_rank_dies(self):
        """Rank 1 dies in the second step's second bucket. The others' backward passes raise the error."""
        ddp = DistributedDataParallel(Network(), bucket_cap_mb=BUCKET)
        with example.QuantizedMean("int8_b128", CPU) as state:

            def mortal(state, bucket):
                if steps and dist.get_rank() == 1 and bucket.index() == 1:
                    os.kill(os.getpid(), signal.SIGKILL)
                return example.quantized_mean_hook(state, bucket)

            steps = []
            ddp.register_comm_hook(state, mortal)
            loss_of(ddp, 0).backward()
            steps.append(0)
            with self.assertRaisesRegex(RuntimeError, "quantized_all_reduce"):
                loss_of(ddp, 1).backward()

    def a_rank_hangs(self):
        """Rank 1 has no backward pass until rank 0's has failed."""
        ddp = DistributedDataParallel(Network(), bucket_cap_mb=BUCKET)
        store = dist.distributed_c10d._get_default_store()
        with example.QuantizedMean("int8_b128", CPU, SHORT) as state:
            ddp.register_comm_hook(state, example.quantized_mean_hook)
            if dist.get_rank() == 0:
                with self.assertRaisesRegex(RuntimeError, "quantized_all_reduce"):
                    loss_of(ddp, 0).backward()
                store.set("rank 0 has given up", "")
            else:
                store.wait(["rank 0 has given up"], 10 * SHORT)

    def formats_differ(self):
        """All ranks raise the same error. After it nothing is sent, so rank 0 does not wait when it calls alone."""
        ddp = DistributedDataParallel(Network(), bucket_cap_mb=BUCKET)
        with example.QuantizedMean("bf16" if dist.get_rank() == 1 else "int8_b128", CPU, SHORT) as state:
            ddp.register_comm_hook(state, example.quantized_mean_hook)
            with self.assertRaisesRegex(RuntimeError, DIFFERENCE):
                loss_of(ddp, 0).backward()
            if dist.get_rank() == 0:
                with self.assertRaisesRegex(RuntimeError, DIFFERENCE):
                    state.submit(torch.zeros(3)).wait()


class DdpFromPython(unittest.TestCase):
    def test_two_ranks(self):
        checks = ("means", "means_of_bfloat16", "beside_bf16_compress", "accumulated", "unused_parameters", "static_graph",
                  "uneven_inputs", "overlapped")
        self.assertEqual(run_on_ranks(2, OnEachRank(*checks)), [0] * 2)

    def test_three_ranks(self):
        self.assertEqual(run_on_ranks(3, OnEachRank("means", "beside_bf16_compress")), [0] * 3)

    def test_ranks_that_differ_or_hang_are_errors_on_all(self):
        self.assertEqual(run_on_ranks(2, OnEachRank("formats_differ", "a_rank_hangs")), [0] * 2)

    def test_a_dead_rank_is_an_error_on_all_others(self):
        self.assertEqual(run_on_ranks(3, OnEachRank("a_rank_dies")), [0, -signal.SIGKILL, 0])

    def test_the_training_learns(self):
        learns(self, EXAMPLE, "--bucket_cap_mb=0.2")


def load_tests(loader, _tests, _pattern):
    return loader.loadTestsFromTestCase(DdpFromPython)


if __name__ == "__main__":
    unittest.main()

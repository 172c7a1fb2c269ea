"""A model whose gradients differ between ranks, their exact means, and how far hooks may be from them."""
import copy
import pathlib
import re
from unittest import mock

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel

from support.exact import ExactTestCase
from support.ranks import run_script_on_ranks

ROOT = pathlib.Path(__file__).resolve().parents[3]
BUCKET = .02  # MiB: several buckets, once they are rebuilt.
STEPS = 3  # That comes after the first one.
FLOAT = 2.0**-24  # Largest relative error of a rounding.
BFLOAT16 = 2.0**-8
# Integer formats: the number of elements of a block, and its greatest code.
BLOCKS = {"int8_b32": (32, 127), "int8_b128": (128, 127), "int8_b256": (256, 127), "int6_b32": (32, 31), "int4_b32": (32, 7)}
# Variable formats: bits per element.
VARIABLE = {"var6": 6, "var5": 5, "var4": 4, "var3": 3}


class Network(nn.Module):
    """Gradients of 27 thousand elements, most of them in matrices. `branch` is used on request, `unused` never."""

    def __init__(self, has_branches=False):
        super().__init__()
        self.layers = nn.Sequential(nn.Linear(61, 160), nn.Tanh(), nn.Linear(160, 100), nn.Tanh(), nn.Linear(100, 7))
        self.branch = nn.Linear(61, 7) if has_branches else None
        self.unused = nn.Linear(3, 5) if has_branches else None

    def forward(self, x, takes_branch=False):
        return self.layers(x) + (self.branch(x) if takes_branch else 0)


class Matrices(nn.Module):
    """Two layers have equal shapes, for PowerSGD in batches."""

    def __init__(self):
        super().__init__()
        self.layers = nn.Sequential(nn.Linear(61, 80), nn.Tanh(), nn.Linear(80, 80), nn.Tanh(), nn.Linear(80, 80), nn.Tanh(),
                                    nn.Linear(80, 7))

    def forward(self, x):
        return self.layers(x)


def loss_of(model, step, **arguments):
    """The loss of a batch that only this rank has."""
    generator = torch.Generator().manual_seed(1000 * step + dist.get_rank())
    x = torch.randn(16, 61, generator=generator).to(next(model.parameters()).dtype)
    return (1 + dist.get_rank()) * model(x, **arguments).square().mean()


def wrapped(model=None, **options):
    return DistributedDataParallel(Network() if model is None else model, bucket_cap_mb=BUCKET, **options)


def wrapped_with_buckets(model):
    """Has several buckets in its first step, too. Otherwise only a model with unused parameters has them."""
    with mock.patch.object(dist, "_DEFAULT_FIRST_BUCKET_BYTES", 1000):
        return wrapped(model, find_unused_parameters=True)


def trained(ddp, steps, begin=0):
    """The gradients, one tensor, of each step."""
    gradients = []
    for step in range(begin, begin + steps):
        ddp.zero_grad()
        loss_of(ddp, step).backward()
        gradients.append(torch.cat([each.grad.flatten() for each in ddp.parameters()]))
    return gradients


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
    if wire_format == "fp8_e4m3_b32":  # Below the scale's 2^-6, numbers are multiples of its 2^-9.
        scale = (1 + 2**-7) * numbers.abs().amax(-1, keepdim=True) / 448
        return torch.maximum(2.0**-4 * numbers.abs(), 2.0**-10 * scale)
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


def learns(test, program, *flags):
    """Checks that the loss of an example's training falls on two ranks."""
    output = run_script_on_ranks(test, 2, program, f"--data={ROOT / 'README.md'}", "--steps=60", *flags)
    losses = [float(loss) for loss in re.findall(r"loss ([\d.]+)", output)]
    test.assertGreater(losses[0], 5, output)  # For uniform bytes it is log 256 = 5.5.
    test.assertLess(losses[-1], 3, output)


class RankTestCase(ExactTestCase):
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
                print(f"passed: {check}\n", end="", flush=True)  # One write, because ranks share the output.

"""narrowcast.fsdp: means in fully_shard, and the training of docs/examples/fsdp_from_python.py."""
import copy
import unittest

import torch
import torch.distributed as dist
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard

from narrowcast.fsdp import QuantizedReduceScatter
from support.gradients import FLOAT, ROOT, STEPS, Network, gathered, half_steps, learns, loss_of, own_gradients
from support.ranks import run_on_ranks

EXAMPLE = ROOT / "docs/examples/fsdp_from_python.py"


def tolerance(own, errors):
    """The largest error of means of `own` [ranks, elements], if rank r sends with an error of at most errors[r]."""
    world_size = own.shape[0]
    magnitudes = own.abs() + errors[:, None]
    return errors.mean() + (world_size + 2) * FLOAT * magnitudes.mean(0)


class Recording(QuantizedReduceScatter):
    """Appends to `errors` the largest rounding error of the gradients that this rank sends."""

    def __init__(self, wire_format, errors):
        super().__init__(wire_format)
        self.wire_format, self.errors = wire_format, errors

    def __call__(self, output_tensor, input_tensor, group, op, async_op=False):
        parts = input_tensor.unflatten(0, (group.size(), -1))
        self.errors.append(half_steps(parts, self.wire_format).max())
        return super().__call__(output_tensor, input_tensor, group, op, async_op)


class OnEachRank(unittest.TestCase):
    """The program of one rank; not a test by itself."""

    def runTest(self):
        torch.set_num_threads(1)
        for wire_format in ("fp32", "int8_b128", "int4_b32", "var5"):
            with self.subTest(wire_format=wire_format):
                self.check_means(wire_format)

    def check_means(self, wire_format):
        torch.manual_seed(0)
        whole = Network()
        sharded = copy.deepcopy(whole)
        errors = []
        mesh = init_device_mesh("cpu", (dist.get_world_size(),))
        for part in (sharded.layers[2], sharded):
            fully_shard(part, mesh=mesh)
            part.set_custom_reduce_scatter(Recording(wire_format, errors))
        for step in range(STEPS):
            errors.clear()
            sharded.zero_grad()
            loss_of(sharded, step).backward()
            self.assertEqual(len(errors), 2)
            of_ranks = gathered(torch.stack(errors)).amax(1)
            self.check_gradients(dict(sharded.named_parameters()), own_gradients(whole, step), of_ranks)

    def check_gradients(self, sharded, own, errors):
        used = 0
        for name, each in own.items():
            of_ranks = gathered(each)
            error = (sharded[name].grad.full_tensor().flatten().double() - of_ranks.mean(0)).abs()
            used = max(used, (error / tolerance(of_ranks, errors)).max().item())
        self.assertLessEqual(used, 1)
        self.assertGreater(used, .1)  # Rounding to the format must be visible.


class OneRank(unittest.TestCase):
    """Accepts a mean and a sum. Others, as for a custom divide factor, are errors. Not a test by itself."""

    def runTest(self):
        reduce_scatter = QuantizedReduceScatter("fp32")
        gradients = torch.arange(4.)
        mean = torch.empty(4)
        for op in (dist.ReduceOp.SUM, dist.ReduceOp.AVG):
            reduce_scatter(mean, gradients, dist.group.WORLD, op)
            self.assertTrue(mean.equal(gradients))
        for op in (torch.distributed._make_nccl_premul_sum(0.5), dist.ReduceOp.MAX):
            with self.assertRaisesRegex(ValueError, "op must be a mean or a sum, but is .*set_gradient_divide_factor"):
                reduce_scatter(mean, gradients, dist.group.WORLD, op)


class OtherFormats(unittest.TestCase):
    """The last rank has another format. All ranks get the error, and their group stays usable; not a test by itself."""

    def runTest(self):
        last = dist.get_world_size() - 1
        mesh = init_device_mesh("cpu", (dist.get_world_size(),))
        model = Network()
        fully_shard(model, mesh=mesh)
        model.set_custom_reduce_scatter(
            QuantizedReduceScatter("int4_b32" if dist.get_rank() == last else "int8_b128"))
        with self.assertRaisesRegex(ValueError, f"format is int4_b32 on rank {last} but int8_b128 on rank 0"):
            loss_of(model, 0).backward()
        ranks = gathered(torch.tensor([dist.get_rank()])).flatten().tolist()
        self.assertEqual(ranks, list(range(dist.get_world_size())))


class FsdpFromPython(unittest.TestCase):
    def test_what_is_no_mean_is_refused(self):
        self.assertEqual(run_on_ranks(1, OneRank()), [0])

    def test_means_are_those_of_the_format(self):
        for world_size in (2, 3):
            self.assertEqual(run_on_ranks(world_size, OnEachRank()), [0] * world_size)

    def test_formats_that_differ_are_an_error_on_all_ranks(self):
        for world_size in (2, 3):
            self.assertEqual(run_on_ranks(world_size, OtherFormats()), [0] * world_size)

    def test_the_training_learns(self):
        learns(self, EXAMPLE)


def load_tests(loader, _tests, _pattern):
    return loader.loadTestsFromTestCase(FsdpFromPython)


if __name__ == "__main__":
    unittest.main()

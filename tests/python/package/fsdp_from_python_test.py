"""narrowcast.fsdp: means in fully_shard, and the training of docs/examples/fsdp_from_python.py."""
import copy
import inspect
import runpy
import sys
import threading
import unittest
from unittest import mock

import torch
import torch.distributed as dist
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import MixedPrecisionPolicy, fully_shard
from torch.distributed.fsdp._fully_shard._fsdp_api import ReduceScatter

from narrowcast.fsdp import QuantizedReduceScatter
from support.gradients import FLOAT, ROOT, STEPS, Network, gathered, half_steps, learns, loss_of, own_gradients
from support.ranks import run_on_ranks

EXAMPLE = ROOT / "docs/examples/fsdp_from_python.py"


def tolerance(own, errors):
    """The largest error of means of `own` [ranks, elements], if rank r sends with an error of at most errors[r]."""
    world_size = own.shape[0]
    magnitudes = own.abs() + errors[:, None]
    return errors.mean() + (world_size + 2) * FLOAT * magnitudes.mean(0)


def plain_shard(wire_format, input_tensor, group, op):
    """The shard of a reduce-scatter, one tensor operation after the other."""
    parts = input_tensor.chunk(group.size())
    messages = torch.stack([torch.ops.narrowcast.encode(part, wire_format) for part in parts])
    received = torch.empty_like(messages)
    dist.all_to_all_single(received, messages, group=group)
    total = sum(torch.ops.narrowcast.decode(each, wire_format, parts[0].numel()) for each in received)
    return (total / group.size() if op == dist.ReduceOp.AVG else total).to(input_tensor.dtype)


class Recording(QuantizedReduceScatter):
    """Appends to `calls` the dtype, the operation and whether the shard has the bits of plain_shard, and to `errors` the
    largest rounding error of the gradients that this rank sends."""

    def __init__(self, wire_format):
        super().__init__(wire_format)
        self.wire_format, self.calls, self.errors = wire_format, [], []

    def __call__(self, output_tensor, input_tensor, group, op, async_op=False):
        expected = plain_shard(self.wire_format, input_tensor, group, op)
        parts = input_tensor.float().unflatten(0, (group.size(), -1))
        self.errors.append(half_steps(parts, self.wire_format).max())
        super().__call__(output_tensor, input_tensor, group, op, async_op)
        self.calls.append((input_tensor.dtype, op, output_tensor.equal(expected)))


def sharded(model, recording, mesh=None, **options):
    """`model` in two parts, both with `recording`."""
    mesh = init_device_mesh("cpu", (dist.get_world_size(),)) if mesh is None else mesh
    for part in (model.layers[2], model):
        fully_shard(part, mesh=mesh, **options)
        part.set_custom_reduce_scatter(recording)
    return model


class OnEachRank(unittest.TestCase):
    """The program of one rank; not a test by itself."""

    def runTest(self):
        torch.set_num_threads(1)
        for wire_format in ("fp32", "int8_b128", "int4_b32", "var5"):
            with self.subTest(wire_format=wire_format):
                self.check_means(wire_format)
        # Without a reduce_dtype, torch reduces in the dtype of gradients, and from 2.15 on in that of parameters.
        of_gradients = torch.bfloat16 if torch.__version__ < "2.15" else torch.float32
        for policy, dtype, op in (
                (MixedPrecisionPolicy(param_dtype=torch.bfloat16, reduce_dtype=torch.float32), torch.float32, dist.ReduceOp.AVG),
                (MixedPrecisionPolicy(param_dtype=torch.bfloat16), of_gradients, dist.ReduceOp.AVG),
                (MixedPrecisionPolicy(reduce_dtype=torch.float16), torch.float16, dist.ReduceOp.SUM),
                (MixedPrecisionPolicy(reduce_dtype=torch.float64), torch.float64, dist.ReduceOp.SUM)):
            with self.subTest(policy=policy):
                self.check_dtype(policy, dtype, op)
        self.check_divide_factor()

    def check_means(self, wire_format):
        torch.manual_seed(0)
        whole = Network()
        recording = Recording(wire_format)
        model = sharded(copy.deepcopy(whole), recording)
        for step in range(STEPS):
            recording.errors.clear()
            model.zero_grad()
            loss_of(model, step).backward()
            self.assertEqual(len(recording.errors), 2)
            of_ranks = gathered(torch.stack(recording.errors)).amax(1)
            check_gradients(self, model, own_gradients(whole, step), of_ranks)
        self.assertEqual(recording.calls, [(torch.float32, dist.ReduceOp.AVG, True)] * 2 * STEPS)

    def check_dtype(self, policy, dtype, op):
        torch.manual_seed(0)
        recording = Recording("int8_b128")
        model = sharded(Network(), recording, mp_policy=policy)
        loss_of(model, 0).backward()
        self.assertEqual(recording.calls, [(dtype, op, True)] * 2)

    def check_divide_factor(self):
        """Another factor than the number of ranks needs sums, which fully_shard divides."""
        gradients = []
        for factor, forces_sums in ((None, False), (4. * dist.get_world_size(), True), (7., False)):
            torch.manual_seed(0)
            model = sharded(Network(), QuantizedReduceScatter("fp32"))
            for part in (model.layers[2], model):
                part.set_force_sum_reduction_for_comms(forces_sums)
                if factor is not None:
                    part.set_gradient_divide_factor(factor)
            if factor == 7:
                with self.assertRaisesRegex(ValueError, "op: must be mean or sum, but is .*set_force_sum_reduction"):
                    loss_of(model, 0).backward()
            else:
                loss_of(model, 0).backward()
                gradients.append([each.grad.full_tensor() for each in model.parameters()])
        for mean, quarter in zip(*gradients):
            torch.testing.assert_close(4 * quarter, mean)


def check_gradients(case, model, own, errors):
    """The gradients are means of `own`, to within rounding errors, which must be visible. `errors`: by rank."""
    of_parameters = dict(model.named_parameters())
    used = 0
    for name, each in own.items():
        of_ranks = gathered(each)
        error = (of_parameters[name].grad.full_tensor().flatten().double() - of_ranks.mean(0)).abs()
        used = max(used, (error / tolerance(of_ranks, errors)).max().item())
    case.assertLessEqual(used, 1)
    case.assertGreater(used, .1)


class TwoByTwo(unittest.TestCase):
    """Hybrid sharding on 4 ranks: shards of 2 ranks, whose means are averaged over 2 groups. Not a test by itself."""

    def runTest(self):
        torch.set_num_threads(1)
        mesh = init_device_mesh("cpu", (2, 2), mesh_dim_names=("replicate", "shard"))
        for wire_format in ("fp32", "int8_b128"):
            torch.manual_seed(0)
            whole = Network()
            recording = Recording(wire_format)
            model = sharded(copy.deepcopy(whole), recording, mesh)
            loss_of(model, 0).backward()
            self.assertEqual([same for _, _, same in recording.calls], [True] * 2)
            of_ranks = gathered(torch.stack(recording.errors)).amax(1)
            check_gradients(self, model, own_gradients(whole, 0), of_ranks)


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
            with self.assertRaisesRegex(ValueError, "op: must be mean or sum, but is .*set_gradient_divide_factor"):
                reduce_scatter(mean, gradients, dist.group.WORLD, op)
        for wrong, error in (("int9", "format: unknown name 'int9'"), ("top2_15", "wire_format: top2_15 drops most elements"),
                             ("top2_31", "wire_format: top2_31 drops most elements")):
            with self.assertRaisesRegex(ValueError, error):
                QuantizedReduceScatter(wrong)
        with self.assertRaisesRegex(ValueError, "async_op must be False"):
            reduce_scatter(mean, gradients, dist.group.WORLD, dist.ReduceOp.AVG, async_op=True)


class OtherFormats(unittest.TestCase):
    """The last rank has another format. All ranks get the error, and their group stays usable; not a test by itself."""

    def runTest(self):
        last = dist.get_world_size() - 1
        mesh = init_device_mesh("cpu", (dist.get_world_size(),))
        model = Network()
        fully_shard(model, mesh=mesh)
        model.set_custom_reduce_scatter(
            QuantizedReduceScatter("int4_b32" if dist.get_rank() == last else "int8_b128"))
        with self.assertRaisesRegex(ValueError, f"format differs between ranks: rank 0 has int8_b128, rank {last} has int4_b32"):
            loss_of(model, 0).backward()
        ranks = gathered(torch.tensor([dist.get_rank()])).flatten().tolist()
        self.assertEqual(ranks, list(range(dist.get_world_size())))


class OtherThreads(unittest.TestCase):
    """Rank 1 makes its call once a thread of rank 0 has answered it many times, while rank 0 waits in its call. So the call
    must not hold the interpreter's lock. Not a test by itself."""

    def runTest(self):
        store = dist.distributed_c10d._get_default_store()
        thread = threading.Thread(target=self.exchange_words, args=(store,))
        thread.start()
        if dist.get_rank() == 1:
            thread.join()
        shard = torch.empty(3)
        QuantizedReduceScatter("fp32")(shard, torch.ones(6), dist.group.WORLD, dist.ReduceOp.SUM)
        self.assertEqual(shard.tolist(), [2, 2, 2])
        thread.join()

    @staticmethod
    def exchange_words(store):
        rank = dist.get_rank()
        for i in range(50):
            store.set(f"word {i} of rank {rank}", "")
            store.wait([f"word {i} of rank {1 - rank}"])


class FsdpFromPython(unittest.TestCase):
    def test_what_is_no_mean_is_refused(self):
        self.assertEqual(run_on_ranks(1, OneRank()), [0])

    def test_means_are_those_of_the_format(self):
        for world_size in (2, 3):
            self.assertEqual(run_on_ranks(world_size, OnEachRank()), [0] * world_size)

    def test_hybrid_shards_are_averaged(self):
        self.assertEqual(run_on_ranks(4, TwoByTwo()), [0] * 4)

    def test_formats_that_differ_are_an_error_on_all_ranks(self):
        for world_size in (2, 3):
            self.assertEqual(run_on_ranks(world_size, OtherFormats()), [0] * world_size)

    def test_other_threads_run_meanwhile(self):
        self.assertEqual(run_on_ranks(2, OtherThreads()), [0] * 2)

    def test_it_is_a_reduce_scatter_of_torch(self):
        """So that type checkers accept it for set_custom_reduce_scatter. A torch without the private module can import it, too."""
        self.assertTrue(issubclass(QuantizedReduceScatter, ReduceScatter))
        with mock.patch.dict(sys.modules, {ReduceScatter.__module__: None}):
            module = runpy.run_path(inspect.getfile(QuantizedReduceScatter))
        self.assertEqual(module["QuantizedReduceScatter"].__bases__, (object,))

    def test_the_training_learns(self):
        learns(self, EXAMPLE)


def load_tests(loader, _tests, _pattern):
    return loader.loadTestsFromTestCase(FsdpFromPython)


if __name__ == "__main__":
    unittest.main()

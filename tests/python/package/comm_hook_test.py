"""narrowcast.register and CommHook: means, what hooks keep, and errors when ranks fail."""
import copy
import ctypes
import datetime
import faulthandler
import gc
import os
import signal
import sys
import time
import unittest
import weakref

import torch
import torch.distributed as dist
from torch.multiprocessing.reductions import StorageWeakRef

import narrowcast
from narrowcast.ddp_comm_hooks.default_hooks import allreduce_hook, bf16_compress_wrapper
from support.gradients import (BFLOAT16, BLOCKS, FLOAT, ROOT, STEPS, VARIABLE, Network, RankTestCase, gathered, learns, loss_of,
                               own_gradients, tolerance, trained, wrapped)
from support.ranks import run_on_ranks

EXAMPLE = ROOT / "docs/examples/ddp_from_python.py"
# Time-out of all-reduces that fail, or are quick. On a busy machine it takes seconds to make a hook.
SHORT = datetime.timedelta(seconds=10)
HALVES = {torch.bfloat16: BFLOAT16, torch.float16: 2.0**-11}  # Largest relative error of a rounding.
LATE = 8  # Seconds. Less than SHORT, so that no rank waits for two time-outs, one after the other.
FORMAT = {"int8": "int8_b128", "int6": "int6_b32", "int4": "int4_b32", "fp8": "fp8_e4m3_b32"}


class OnEachRank(RankTestCase):
    """The program of one rank."""

    def means(self):
        for name in ("fp32", *FORMAT, *VARIABLE):
            with self.subTest(hook=name):
                self.means_of(name, torch.float32)
        for wire_format in BLOCKS:
            with self.subTest(wire_format=wire_format):
                self.means_of("quantized_allreduce", torch.float32, hook_format=wire_format)

    def means_of_other_types(self):
        for dtype in (torch.bfloat16, torch.float16, torch.float64):
            with self.subTest(dtype=dtype):
                self.means_of("int8", dtype)
                self.means_of("fp32", dtype)

    def means_over_nodes(self):
        """Two nodes of two ranks. Only the nodes' means are rounded."""
        for name in ("fp32", "int8", "var5", "fp8"):
            with self.subTest(hook=name):
                self.means_of(name, torch.float32, ranks_per_node=2, node_size=2)

    def means_of(self, name, dtype, ranks_per_node=1, **options):
        """Compares several steps with the mean of the ranks' own gradients, within one rounding of each message and mean."""
        model = Network().to(dtype)
        ddp = wrapped(model)
        hook = narrowcast.register(ddp, name, **({"levels": "one"} | options if ranks_per_node == 1 else options))
        wire_format = options.get("hook_format", FORMAT.get(name, name))
        for step in range(STEPS):
            gradients, = trained(ddp, 1, step)
            self.check_equal_on_all_ranks(gradients)
            own = own_gradients(model, step)
            self.check_error(gradients, gathered(torch.cat([own[each].flatten() for each, _ in model.named_parameters()])),
                             wire_format, ranks_per_node)
        if dist.get_world_size() > 1:
            self.assertGreater(hook.payload_bytes_sent, 0)

    def check_equal_on_all_ranks(self, gradients):
        for of_rank in gathered(gradients):
            self.assert_same(of_rank, gradients.double())

    def check_error(self, means, of_ranks, wire_format, ranks_per_node):
        """Blocks of a bucket are not those of all gradients, so the largest error of any block is allowed for all."""
        error = (means.double() - of_ranks.mean(0)).abs()
        of_nodes = of_ranks.unflatten(0, (-1, ranks_per_node)).mean(1)
        world_size = of_nodes.shape[0]
        largest = of_nodes.abs().amax(-1, keepdim=True).expand_as(of_nodes)
        allowed = tolerance(of_nodes if wire_format in ("fp32", "fp8_e4m3_b32") else largest, wire_format)
        if ranks_per_node > 1:  # The nodes' sums, in float32.
            allowed += ranks_per_node * FLOAT * of_ranks.abs().mean(0)
        if means.dtype in HALVES:  # The sum is rounded once more.
            allowed += HALVES[means.dtype] * (of_ranks.mean(0).abs() + allowed) + torch.finfo(means.dtype).smallest_normal
        self.assertLessEqual((error - allowed).max(), 0)
        if wire_format != "fp32":  # Rounding to the format must be visible.
            self.assertGreater(error.max(), 1e-3 * (largest.mean() * world_size) * 2**-12)

    def exempt_parameters(self):
        """Biases are sent as float32, and weights in the format."""
        ddp = wrapped()
        narrowcast.register(ddp, "int8", levels="one", exempt_one_dimensional=True)
        trained(ddp, 1)
        own = own_gradients(ddp.module, 0)
        for name, parameter in ddp.module.named_parameters():
            of_ranks = gathered(own[name])
            exceeds = (parameter.grad.flatten() - of_ranks.mean(0)).abs() > tolerance(of_ranks, "fp32")
            self.assertEqual(exceeds.any(), parameter.dim() > 1, name)

    def stochastic_rounding(self):
        """Means of one gradient differ from step to step, and their average has an eighth of the error of one of them: the root
        of their number. Without it, all are the same."""
        ddp, steps = wrapped(), 64
        for options in ({}, {"stochastic_rounding": 7}):
            model = wrapped(ddp.module)
            narrowcast.register(model, "int8", levels="one", **options)
            means = []
            for _ in range(steps):
                means += trained(model, 1)
                self.check_equal_on_all_ranks(means[-1])
            means = torch.stack(means[1:]).double()  # The first step has other buckets.
            own = own_gradients(model.module, 0)
            exact = gathered(torch.cat([own[name].flatten() for name, _ in model.module.named_parameters()])).mean(0)
            ratio = ((means.mean(0) - exact).norm() / (means[0] - exact).norm()).item()
            self.assertAlmostEqual(ratio, 1 / 8 if options else 1, delta=.05 if options else 1e-6)

    def own_way(self):
        """CommHook with register_comm_hook, made by the first bucket: as frameworks do it that take a state and a function."""
        first, second = wrapped(), wrapped()
        second.load_state_dict(first.state_dict())
        first.register_comm_hook(narrowcast.CommHook("int8"), narrowcast.comm_hook)
        narrowcast.register(second, "int8")
        self.assert_same(trained(first, STEPS), trained(second, STEPS))

    def properties(self):
        ddp = wrapped()
        lazy = narrowcast.CommHook("int8")
        with self.assertRaisesRegex(RuntimeError, "hook 'int8' is not made before its first bucket: call open()"):
            lazy.payload_bytes_sent
        hook = narrowcast.register(ddp, "auto", link_gbit=1, link_us=50)  # The ranks share a node.
        trained(ddp, 1)
        world_size = dist.get_world_size()
        self.assertEqual((hook.name, hook.nodes), ("auto", f"1 x {world_size}"))
        self.assertRegex(hook.decision, "link")
        self.assertIsNone(hook.compression)
        self.assertGreater(hook.predicted_seconds(1 << 20), 0)
        self.assertTrue(hook.keeps_replicas_equal)
        ddp = wrapped()
        one_level = narrowcast.register(ddp, "int8", levels="one")
        trained(ddp, 1)
        self.assertGreater(one_level.compression, 3.9)
        self.assertEqual(one_level.nodes, f"{world_size} x 1")

    def reducer_path(self):
        """run_for_reducer, which Python's DistributedDataParallel needs, gives the bits of run, which C++ compares with every hook in
        C++ (CommHookClass): in buckets of several parameters, with what a hook keeps from step to step."""
        for name in narrowcast.hook_names()[1:]:
            options = {"error_feedback": True, "stochastic_rounding": 3, "levels": "one"} if name in (*FORMAT, *VARIABLE) else {}
            if "power_sgd" in name:
                options = {"power_sgd_start": 1, "levels": "one"}
            if name == "auto":
                options = {"link_gbit": 1e-4, "link_us": 50, "levels": "one"}
            with self.subTest(hook=name):
                buckets = [[torch.zeros(40, 30), torch.zeros(40)], [torch.zeros(17, 64), torch.zeros(17)]]
                hooks = [narrowcast.CommHook(name, **options).open("cpu") for _ in range(2)]
                first, second = (each._made for each in hooks)
                for step in range(STEPS):
                    for index, parameters in enumerate(buckets):
                        generator = torch.Generator().manual_seed(100 * step + 10 * index + dist.get_rank())
                        own = torch.randn(sum(each.numel() for each in parameters), generator=generator)
                        buffers = own.clone(), own.clone()
                        expected = first.run(buffers[0], index, index == 1, parameters).wait()
                        result = second.run_for_reducer(buffers[1], buffers[1], index, index == 1, parameters).wait()
                        self.assertIs(result, buffers[1])
                        self.assert_same(result, expected[0] if isinstance(expected, list) else expected)
                        self.assertEqual(result.equal(own), name == "noop")
                self.assertEqual(first.payload_bytes_sent(), second.payload_bytes_sent())

    def forgets_parameters(self):
        """A hook that is kept does not keep the model and its gradients."""
        kept = []
        for name in narrowcast.hook_names()[1:]:
            options = {"error_feedback": True, "levels": "one"} if name in (*FORMAT, *VARIABLE) else {}
            if "power_sgd" in name:
                options = {"power_sgd_start": 1, "levels": "one"}
            with self.subTest(hook=name):
                kept.append(self.check_forgotten(lambda ddp, each=(name, options): narrowcast.register(ddp, each[0], **each[1])))
                self.assertEqual(kept[-1].name, name)
        self.check_forgotten(lambda ddp: ddp.register_comm_hook(None, allreduce_hook))

    def check_forgotten(self, register):
        """An engine's thread may release a tensor a moment after the step."""
        ddp = wrapped()
        hook = register(ddp)
        trained(ddp, STEPS)
        memories = [StorageWeakRef(tensor.untyped_storage()) for each in ddp.parameters() for tensor in (each, each.grad)]
        del ddp
        gc.collect()
        end = time.monotonic() + 20
        while not all(each.expired() for each in memories) and time.monotonic() < end:
            os.sched_yield()
        self.assertEqual([each.expired() for each in memories], [True] * len(memories))
        return hook

    def collected(self):
        """A hook that is collected with an exchange in flight. To end the exchange, the engine's thread needs the GIL, so nothing
        may wait for the thread with it. Such a wait would be forever: then the process ends here, with an error."""
        faulthandler.dump_traceback_later(30, exit=True)
        hooks = [narrowcast.CommHook("int8", dist.new_group(), levels="one").open("cpu")]
        alone, _ = dist.new_subgroups(1)
        if dist.get_rank() == 0:

            def submitting(state, bucket):
                state.extend([hooks[0].run(bucket).done()])
                done = torch.futures.Future()
                done.set_result(bucket.buffer().clone())
                return done

            is_done = []
            ddp = wrapped(process_group=alone)
            ddp.register_comm_hook(is_done, submitting)
            loss_of(ddp, 0).backward()
            self.assertEqual(set(is_done), {False})
        hooks.clear()
        gc.collect()
        faulthandler.cancel_dump_traceback_later()

    def held_interpreter(self):
        """The engine's thread averages while this thread keeps the GIL: reading memory through ctypes does not release it, and no
        thread gets it by asking. Afterwards that thread waits for the GIL, to release a tensor, and the future is completed."""
        hook = narrowcast.CommHook("fp32", levels="one").open("cpu")
        buffer = torch.full((1000,), 1. + dist.get_rank())
        last = ctypes.c_float.from_address(buffer[-1:].data_ptr())
        before, end = sys.getswitchinterval(), time.monotonic() + 30
        sys.setswitchinterval(1000)
        future = hook._made.run_for_reducer(buffer, buffer, 0, True, [])
        while last.value != 1.5 and time.monotonic() < end:
            pass
        value = last.value
        sys.setswitchinterval(before)
        self.assertEqual(value, 1.5)
        self.assertIs(future.wait(), buffer)

    def released_buffer(self):
        """What an exchange in flight keeps belongs to no object of Python. Releasing one takes the GIL, while a thread that has it
        may wait for the thread that ends the exchange: torch.distributed's Reducer destroys the group with the GIL."""
        store, kept = dist.distributed_c10d._get_default_store(), {}
        for name in ("allreduce", "bf16_compress", "fp32"):
            hook = narrowcast.CommHook(name, **{"levels": "one"} if name == "fp32" else {}).open("cpu")
            buffer = torch.ones(1000)
            reference = weakref.ref(buffer)
            if dist.get_rank() != 0:
                store.wait([f"rank 0 has looked for the buffer of {name}"])
            future = hook._made.run_for_reducer(buffer, None, 0, True, [])
            del buffer
            if dist.get_rank() == 0:
                kept[name] = reference() is not None
                store.set(f"rank 0 has looked for the buffer of {name}", "")
            future.wait()
        self.assertFalse(any(kept.values()), kept)

    def a_rank_dies(self):
        """Rank 1 dies in the second step's second bucket. The others' backward passes raise the error, with the rank, and do not
        wait for the group's time-out."""
        ddp, second = wrapped(), wrapped()
        hook = narrowcast.CommHook("int8").open("cpu")
        second.register_comm_hook(narrowcast.CommHook("int8").open("cpu"), bf16_compress_wrapper(narrowcast.comm_hook))

        def mortal(state, bucket):
            if steps and dist.get_rank() == 1 and bucket.index() == 1:
                os.kill(os.getpid(), signal.SIGKILL)
            return narrowcast.comm_hook(state, bucket)

        steps = []
        ddp.register_comm_hook(hook, mortal)
        loss_of(ddp, 0).backward()
        steps.append(0)
        self.check_lost_rank(ddp, at_least=0)
        self.check_lost_rank(second, at_least=0)  # Within a wrapper the error has the same type.

    def a_rank_hangs(self):
        self.hangs(levels="one")

    def a_rank_hangs_in_its_node(self):
        """The ranks share memory, as they do by default on one machine."""
        self.hangs()

    def hangs(self, **options):
        """Rank 1 has no backward pass until those of all others have failed, at the group's time-out."""
        group = dist.new_group(timeout=SHORT)
        ddp = wrapped()
        dist.barrier()
        narrowcast.register(ddp, "int8", process_group=group, **options)
        store = dist.distributed_c10d._get_default_store()
        has_given_up = f"has given up group {group.group_name}"
        others = [f"rank {rank} {has_given_up}" for rank in range(dist.get_world_size()) if rank != 1]
        if dist.get_rank() == 1:
            store.wait(others, 3 * SHORT)
        else:
            self.check_lost_rank(ddp, at_least=SHORT.total_seconds() - 0.001)  # Time is counted in milliseconds.
            store.set(f"rank {dist.get_rank()} {has_given_up}", "")

    def check_lost_rank(self, ddp, at_least):
        """The time includes a backward pass, which takes milliseconds, and what a machine with other work adds."""
        begin = time.monotonic()
        with self.assertRaisesRegex(dist.DistBackendError, "int8 of bucket .*rank 1"):
            loss_of(ddp, 1).backward()
        seconds = time.monotonic() - begin
        self.assertGreaterEqual(seconds, at_least)
        self.assertLess(seconds, at_least + LATE)

    def exception_in_a_pass(self):
        """An exception of the model reaches the caller, and the process can end with an exchange in flight."""
        ddp = wrapped()
        narrowcast.register(ddp, "int8")

        class Failing(torch.autograd.Function):
            @staticmethod
            def forward(ctx, x):
                return x.clone()

            @staticmethod
            def backward(ctx, gradient):
                raise KeyError("the model's own error")

        x = torch.ones(16, 61, requires_grad=True)
        with self.assertRaisesRegex(KeyError, "the model's own error"):
            ddp(Failing.apply(x)).sum().backward()


class CommHooks(unittest.TestCase):
    def test_two_ranks(self):
        checks = ("means", "means_of_other_types", "own_way", "properties", "reducer_path", "exempt_parameters", "stochastic_rounding", "collected", "held_interpreter", "released_buffer",
                  "exception_in_a_pass")
        self.assertEqual(run_on_ranks(2, OnEachRank(*checks)), [0] * 2)

    def test_three_ranks(self):
        self.assertEqual(run_on_ranks(3, OnEachRank("means", "properties")), [0] * 3)

    def test_a_hook_that_is_kept(self):
        self.assertEqual(run_on_ranks(2, OnEachRank("forgets_parameters")), [0] * 2)

    def test_four_ranks(self):
        self.assertEqual(run_on_ranks(4, OnEachRank("means_over_nodes")), [0] * 4)

    def test_a_rank_that_hangs_is_an_error(self):
        self.assertEqual(run_on_ranks(3, OnEachRank("a_rank_hangs", "a_rank_hangs_in_its_node")), [0] * 3)

    def test_a_dead_rank_is_an_error_on_all_others(self):
        self.assertEqual(run_on_ranks(3, OnEachRank("a_rank_dies")), [0, -signal.SIGKILL, 0])

    def test_the_training_learns(self):
        learns(self, EXAMPLE, "--bucket_cap_mb=0.2", "--hook=int8", "--node_size=1")


def load_tests(loader, _tests, _pattern):
    return loader.loadTestsFromTestCase(CommHooks)


if __name__ == "__main__":
    unittest.main()

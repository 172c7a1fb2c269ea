"""Calls of narrowcast.register, CommHook and their like in ddp_comm_hooks: options, and errors that name the right call."""
import unittest

import numpy
import torch
import torch.distributed as dist
from torch.distributed.algorithms.ddp_comm_hooks import DDPCommHookType as TypesOfPyTorch
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import FullyShardedDataParallel, fully_shard

import narrowcast
from narrowcast.ddp_comm_hooks import DDPCommHookType, register_ddp_comm_hook
from narrowcast.ddp_comm_hooks.post_localSGD_hook import post_localSGD_hook
from narrowcast.ddp_comm_hooks.powerSGD_hook import batched_powerSGD_hook, powerSGD_hook
from support.gradients import ROOT, Network, RankTestCase, trained, wrapped
from support.ranks import run_on_ranks


class OnEachRank(RankTestCase):
    """The program of one rank."""

    def wrong_options(self):
        """Raised before anything is sent, or on all ranks."""
        ddp = wrapped()
        with self.assertRaisesRegex(ValueError, "hook: unknown name 'int9'"):
            narrowcast.register(ddp, "int9")
        with self.assertRaisesRegex(ValueError, "unknown option 'feedback'; known: hook_format"):
            narrowcast.register(ddp, "int8", feedback=True)
        with self.assertRaisesRegex(TypeError, "error_feedback: must be bool, but is int 1"):
            narrowcast.register(ddp, "int8", error_feedback=1)
        with self.assertRaisesRegex(ValueError, "channel_size: 5 has no effect with the hook 'int8'"):
            narrowcast.register(ddp, "int8", channel_size=5)
        with self.assertRaisesRegex(ValueError, 'connections: must be a number or "auto", but is "all"'):
            narrowcast.register(ddp, "int8", connections="all")
        with self.assertRaisesRegex(ValueError, "connections: must be auto or in 1..64, but is 65"):
            narrowcast.register(ddp, "int8", connections=65)
        narrowcast.CommHook("int8", node_size=1, connections="auto").open("cpu")
        with self.assertRaisesRegex(ValueError, "'none' is not a hook"):
            narrowcast.register(ddp, "none")
        with self.assertRaisesRegex(ValueError, "hook differs between ranks: rank 0 has int8, rank 1 has int4"):
            narrowcast.register(ddp, "int8" if dist.get_rank() == 0 else "int4")
        with self.assertRaisesRegex(ValueError, "node_size differs between ranks: rank 0 has 1, rank 1 has 2"):
            narrowcast.register(ddp, "int8", node_size=1 + dist.get_rank())
        # An error of one rank is an error on all, and the group remains usable.
        wrong = dist.get_rank() == 1
        with self.assertRaisesRegex(ValueError, "create_comm_hook on rank 1: unknown option 'feedback'"):
            narrowcast.register(ddp, "int8", **({"feedback": True} if wrong else {}))
        with self.assertRaisesRegex(TypeError, "create_comm_hook on rank 1: levels: must be str, but is int 2"):
            narrowcast.register(ddp, "int8", levels=2 if wrong else "one")
        with self.assertRaisesRegex(TypeError, "rank 1: levels: must be a bool, int, float or str, but is dtype"):
            narrowcast.register(ddp, "int8", levels=torch.float16 if wrong else "one")
        with self.assertRaisesRegex(ValueError, 'rank 1: device: must be "cpu" or "cuda", but is "gpu"'):
            narrowcast.CommHook("int8").open("gpu" if wrong else "cpu")
        with self.assertRaisesRegex(ValueError, 'device: must be "cpu" or "cuda", because group ".*" moves tensors on both'):
            narrowcast.CommHook("int8").open()
        with self.assertRaisesRegex(TypeError, "levels: must be a bool, int, float or str, but is device"):
            narrowcast.CommHook("int8", levels=torch.device("cpu")).open("cpu")
        narrowcast.register(ddp, "fp32", device=torch.device("cpu"))
        trained(ddp, 1)

    def wrong_calls(self):
        """The right call is named, on all ranks."""
        ddp = wrapped()
        with self.assertRaisesRegex(TypeError, r"name: must be the name of a hook, such as \"int8\", but is DDPCommHookType.INT8: call "
                                    r"register_ddp_comm_hook\(DDPCommHookType.INT8, model\)$"):
            narrowcast.register(ddp, DDPCommHookType.INT8)
        with self.assertRaisesRegex(TypeError, "create_comm_hook on rank 1: name: must be the name of a hook, .*, but is 8$"):
            narrowcast.register(ddp, 8 if dist.get_rank() == 1 else "int8")
        for wrong in ("INT8", "int8", TypesOfPyTorch.ALLREDUCE, None):
            with self.assertRaisesRegex(TypeError, "comm_hook_type: must be a member of narrowcast.ddp_comm_hooks.DDPCommHookType, such as "
                                        "DDPCommHookType.INT8, but is .*(INT8|int8|ALLREDUCE|None)"):
                register_ddp_comm_hook(wrong, ddp)
        for function, kind in ((narrowcast.comm_hook, "CommHook"), (powerSGD_hook, "PowerSGDState"),
                               (batched_powerSGD_hook, "PowerSGDState"), (post_localSGD_hook, "PostLocalSGDState")):
            for state in (None, dist.group.WORLD, narrowcast.CommHook):
                ddp = wrapped()
                ddp.register_comm_hook(state, function)
                with self.assertRaisesRegex(TypeError, rf"state: must be a {kind}, but is .*: register_comm_hook\(.*{kind}\("):
                    trained(ddp, 1)
        with self.assertRaisesRegex(ValueError, "unknown option 'feedback'; known: hook_format, .*, device, silence_seconds$"):
            narrowcast.CommHook("int8", feedback=True).open("cpu")

    def numpy_options(self):
        """Scalars of NumPy count as Python's."""
        hook = narrowcast.CommHook("int8", stochastic_rounding=numpy.int32(7), error_feedback=numpy.bool_(True), levels=numpy.str_("one"),
                                   silence_seconds=numpy.float32(20)).open("cpu")
        self.assertEqual(hook.nodes, f"{dist.get_world_size()} x 1")
        with self.assertRaisesRegex(TypeError, "node_size: must be a bool, int, float or str, but is ndarray"):
            narrowcast.CommHook("int8", node_size=numpy.ones(1)).open("cpu")

    def closed(self):
        """A closed hook is not opened again, and says how it was made."""
        hook = narrowcast.CommHook("int8", levels="one", stochastic_rounding=7)
        hook.close()  # It is not made yet.
        self.assertIs(hook.open("cpu").open("cpu"), hook)
        self.assertEqual(repr(hook), "CommHook('int8', levels='one', stochastic_rounding=7)")
        hook.close()
        with self.assertRaisesRegex(ValueError, "hook 'int8' is closed: make another CommHook"):
            hook.open("cpu")
        self.assertEqual(repr(hook), "CommHook('int8', levels='one', stochastic_rounding=7)")

    def device(self):
        """None is the default, in a group that moves tensors of CPUs and GPUs, too: the device of the model or the bucket."""
        ddp, lazy = wrapped(), wrapped()
        narrowcast.register(ddp, "fp32", device=None, levels=None, silence_seconds=None)
        lazy.register_comm_hook(narrowcast.CommHook("fp32", device=None), narrowcast.comm_hook)
        lazy.load_state_dict(ddp.state_dict())
        self.assert_same(trained(lazy, 1), trained(ddp, 1))

    def wrong_models(self):
        """Only DistributedDataParallel calls hooks with buckets."""
        with self.assertRaisesRegex(TypeError, "model: must be a DistributedDataParallel, but is a Network$"):
            narrowcast.register(Network(), "int8")
        mesh = init_device_mesh("cpu", (dist.get_world_size(),))
        for sharded in (FullyShardedDataParallel(Network(), device_id=torch.device("cpu")), fully_shard(Network(), mesh=mesh)):
            with self.assertRaisesRegex(TypeError, f"model: must be a DistributedDataParallel, but is a {type(sharded).__name__}; "
                                        "gradients of fully_shard are averaged with narrowcast.fsdp"):
                narrowcast.register(sharded, "int8")
        with self.assertRaisesRegex(TypeError, "model: must be a DistributedDataParallel, but is a NoneType$"):
            narrowcast.register(None)


class HookCalls(unittest.TestCase):
    def test_two_ranks(self):
        checks = ("wrong_options", "wrong_calls", "numpy_options", "closed", "device", "wrong_models")
        self.assertEqual(run_on_ranks(2, OnEachRank(*checks)), [0] * 2)

    def test_the_version_is_that_of_the_project(self):
        self.assertIn(f"project(narrowcast VERSION {narrowcast.__version__} ", (ROOT / "CMakeLists.txt").read_text())


def load_tests(loader, _tests, _pattern):
    return loader.loadTestsFromTestCase(HookCalls)


if __name__ == "__main__":
    unittest.main()

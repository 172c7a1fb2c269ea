"""ElasticGroup from Python: in real processes under narrowcast-run, with faults in their steps, and in ranks of one process each
that no launcher replaces."""
import datetime
import os
import pathlib
import runpy
import signal
import socket
import subprocess
import sys
import tempfile
import time
import unittest
from unittest import mock

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.algorithms.ddp_comm_hooks import default_hooks
from torch.nn.parallel import DistributedDataParallel

import narrowcast
from narrowcast._buckets import BucketsOfRun
from narrowcast._state_dicts import from_tensors, to_tensors
from narrowcast.elastic import _loss
from support import elastic_steps
from support.ranks import run_on_free_ranks

ROOT = pathlib.Path(__file__).resolve().parents[3]
STEPS = ROOT / "tests/python/support/elastic_steps.py"
EXAMPLE = ROOT / "docs/examples/elastic.py"
WORLD, COUNT = 2, 20  # Ranks and steps.
BREAKS = range(9, 19)  # Steps before which all connections break.
# Nodes whose store is at a loopback address.
AS_ON_ONE_NODE = 'export LOCAL_WORLD_SIZE=$WORLD_SIZE LOCAL_RANK=$RANK; exec "$@"'
LIMIT = 300  # Seconds of a run on a machine with other work.


def leaves(value, name=""):
    """Tensors and numbers in nested dictionaries and lists, with their places."""
    if isinstance(value, (dict, list)):
        for key, each in value.items() if isinstance(value, dict) else enumerate(value):
            yield from leaves(each, f"{name}[{key!r}]")
    else:
        yield name, value.tolist() if isinstance(value, torch.Tensor) else value


def result(folder, rank):
    """What the rank of elastic_steps.py has at the end, and its files and threads after each step."""
    end, used = torch.load(pathlib.Path(folder) / f"rank-{rank}")
    return list(leaves(end)), used


class UnderNarrowcastRun(unittest.TestCase):
    def launch(self, *command):
        ended = subprocess.run([os.environ["NARROWCAST_RUN"], "--standalone", f"--nproc_per_node={WORLD}", "--recovery=in_place",
                                "--max_restarts=9", sys.executable, "-W", "ignore", *map(str, command)],
                               stdin=subprocess.DEVNULL, capture_output=True, text=True, timeout=LIMIT)
        self.assertEqual(ended.returncode, 0, ended.stdout + ended.stderr)
        return ended.stdout + ended.stderr

    def test_steps(self):
        """Ranks are lost in the first step, by an exception, and right after it after optimizer.step(). Then the connections break
        ten times. All ranks end with the bits of a run without losses, and no old group leaves connections or threads."""
        with tempfile.TemporaryDirectory() as folder:
            self.assertEqual(run_on_free_ranks(WORLD, WithoutRecovery("whole_steps", folder, COUNT)), [0, 0])
            expected, _ = result(folder, 0)
            output = self.launch(STEPS, folder, COUNT, "kill:1:0", "die:1:5", "late:0:6",
                                 *(f"break:{rank}:{step}" for step in BREAKS for rank in range(WORLD)))
            found = [result(folder, rank) for rank in range(WORLD)]
        self.assertEqual(output.count(f"ends after {COUNT} steps"), WORLD, output)
        for step, lost in (0, 1), (5, 1), (6, 0):
            self.assertEqual(output.count(f"goes on with step {step}, lost [{lost}]"), WORLD, output)
        self.assertRegex(output, r"(?s)in take_step.*raise KeyError.*KeyError: .no data for step 5")
        self.assertNotIn("waitForInput", output)
        for rank, (end, used) in enumerate(found):
            self.assertEqual(end, expected, f"rank {rank}")
            self.assertEqual(used[BREAKS[0]], used[COUNT - 1], f"rank {rank}")

    def test_residuals(self):
        """Those of ranks that live are kept, as DistributedDataParallel keeps its buckets, which have another order. A
        program that keeps its model is warned."""
        with tempfile.TemporaryDirectory() as folder:
            self.assertEqual(run_on_free_ranks(WORLD, WithoutRecovery("whole_steps", folder, 5, "error_feedback")), [0, 0])
            expected, _ = result(folder, 0)
            output = self.launch(STEPS, folder, 5, "error_feedback", "keep", "break:0:3", "break:1:3")
            self.assertIn("rank 1 ends after 5 steps, 1 recoveries", output)
            self.assertEqual(result(folder, 1)[0], expected)
        self.assertEqual(output.count("UserWarning: make: something else still refers to a Distributed"), WORLD, output)

    def test_newcomer_that_differs(self):
        """It ends alone: with another state, and with another hook."""
        with tempfile.TemporaryDirectory() as folder, socket.create_server(("127.0.0.1", 0)) as free:
            port = free.getsockname()[1]
            free.close()

            def start_node(is_host, *arguments):
                return subprocess.Popen([os.environ["NARROWCAST_RUN"], "--nnodes=1:2", "--rdzv_backend=c10d",
                                         f"--rdzv_endpoint=127.0.0.1:{port}",
                                         f"--rdzv_conf=last_call_timeout=0.3,is_host={is_host}", "--nproc_per_node=1",
                                         "--recovery=in_place", "--max_restarts=3", "sh", "-c", AS_ON_ONE_NODE, "sh",
                                         sys.executable, "-W", "ignore", STEPS, folder, "1000000", *arguments],
                                        stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)

            host = start_node("true")
            try:
                while not (pathlib.Path(folder) / "begun-0").exists():
                    self.assertIsNone(host.poll())
                    time.sleep(.1)
                for kind, message in (("another_state", "state 'more': this new process has"), ("error_feedback", "")):
                    newcomer = start_node("false", kind)
                    output = newcomer.communicate(timeout=LIMIT)[0]
                    self.assertEqual(newcomer.returncode, 1, output)
                    self.assertIn("narrowcast-run: the others go on without this node: " + message, output)
                    self.assertNotIn("a new process takes its place", output)
                    self.assertIsNone(host.poll())
            finally:
                host.terminate()
                output = host.communicate(timeout=LIMIT)[0]
            self.assertEqual(output.count("its ranks do not fit the others: goes on with 1 rank"), 2, output)
            self.assertNotIn("Traceback", output)

    def test_example(self):
        with tempfile.TemporaryDirectory() as folder:
            self.assertEqual(run_on_free_ranks(WORLD, WithoutRecovery("example", folder)), [0, 0])
            expected = torch.load(pathlib.Path(folder) / "sum")
        output = self.launch(EXAMPLE, "60")
        self.assertEqual(output.count("goes on with step 60"), WORLD, output)
        self.assertIn(f"sum of the weights {expected:.6f}, recoveries 1", output)


def make(_group):
    return DistributedDataParallel(nn.Linear(4, 2))


class WithoutRecovery(unittest.TestCase):
    """Cases of one rank of two, whose launcher replaces no process."""

    def __init__(self, name, *arguments):
        super().__init__(name)
        self.arguments = arguments

    def whole_steps(self):
        folder, *arguments = self.arguments
        elastic_steps.train(pathlib.Path(folder), *arguments)

    def example(self):
        folder, = self.arguments
        sys.argv = [str(EXAMPLE), "-1", f"{folder}/checkpoint.pt"]
        model = runpy.run_path(str(EXAMPLE))["model"]
        if os.environ["RANK"] == "0":
            self.assertEqual(torch.load(f"{folder}/checkpoint.pt")["step"], 200)
            torch.save(model[1].weight.sum().item(), pathlib.Path(folder) / "sum")

    def lost_rank(self):
        """A loss is an error, also with hooks of PyTorch."""
        def make_with_hook(group):
            ddp = make(group)
            ddp.register_comm_hook(None, default_hooks.fp16_compress_wrapper(default_hooks.allreduce_hook))
            return ddp

        def step(ddp, number):
            if number == 1 and dist.get_rank() == 1:
                os.kill(os.getpid(), signal.SIGKILL)
            ddp(torch.ones(3, 4)).sum().backward()
            return True

        with self.assertRaisesRegex(dist.DistBackendError, "rank 0: step 1 failed: .*127.0.0.1"):
            narrowcast.ElasticGroup().run({}, make_with_hook, step)
        self.assertFalse(dist.is_initialized())

    def hung_rank(self):
        """It is an error that names the rank, also if the other one waits for it in a group of its own. That rank then ends it."""
        waits_in, = self.arguments
        ranks = [0] * WORLD

        def make_with_groups(group):
            return make(group), {"default": None, "new": dist.new_group([0, 1]), "gloo": dist.new_group(backend="gloo")}

        def step(made, number):
            ddp, groups = made
            if number == 0:
                dist.all_gather_object(ranks, os.getpid())
            if number == 1 and dist.get_rank() == 1:
                os.kill(os.getpid(), signal.SIGSTOP)
            if number == 1:
                dist.all_reduce(torch.ones(1), group=groups[waits_in])
            ddp(torch.ones(3, 4)).sum().backward()
            return True

        try:
            with self.assertRaisesRegex(dist.DistBackendError, "rank 0: rank 1 is lost: it has sent no heartbeat for 3 s"):
                narrowcast.ElasticGroup(silence_seconds=3).run({}, make_with_groups, step)
        finally:
            os.kill(ranks[1], signal.SIGKILL)

    def hook_that_does_not_average(self):
        def make_with_hook(group):
            ddp = make(group)
            narrowcast.register(ddp, "noop")
            return [ddp]

        with self.assertRaisesRegex(ValueError, "make: hook 'noop' does not keep the ranks' models equal"):
            narrowcast.ElasticGroup().run({}, make_with_hook, lambda made, number: False)

    def functions_of_torch_distributed(self):
        """Those that need a group's rank, objects, its store or another group."""
        def step(group, _number):
            objects = [None] * dist.get_world_size()
            dist.all_gather_object(objects, dist.get_rank(group))
            self.assertEqual(objects, [0, 1])
            dist.barrier()
            for each in dist.new_group([0, 1]), dist.new_group([1, 0], backend="gloo"):
                total = torch.ones(3)
                dist.all_reduce(total, group=each)
                self.assertEqual(total.tolist(), [2] * 3)
                self.assertEqual(each._get_backend(torch.device("cpu")).options._timeout, datetime.timedelta(seconds=77))
            received = torch.full((1,), float(dist.get_rank()))
            dist.broadcast(received, src=1)
            self.assertEqual(received.item(), 1)
            return False

        hook = sys.excepthook
        narrowcast.ElasticGroup(timeout_seconds=77).run({}, lambda group: group, step)
        self.assertIs(sys.excepthook, hook)

    def state_that_differs(self):
        """Between ranks."""
        state = {"counter": torch.zeros(int(os.environ["RANK"]) + 1)}
        with self.assertRaisesRegex(ValueError, "state 'counter' differs between ranks: rank 0 has Float .1., rank 1 has Float .2."):
            narrowcast.ElasticGroup().run(state, make, lambda ddp, number: False)


class Ranks(unittest.TestCase):
    def test_lost_rank(self):
        self.assertEqual(run_on_free_ranks(WORLD, WithoutRecovery("lost_rank")), [0, -signal.SIGKILL])

    def test_hung_rank(self):
        for waits_in in "default", "new", "gloo":
            with self.subTest(waits_in):
                self.assertEqual(run_on_free_ranks(WORLD, WithoutRecovery("hung_rank", waits_in)), [0, -signal.SIGKILL])

    def test_hook_that_does_not_average(self):
        self.assertEqual(run_on_free_ranks(WORLD, WithoutRecovery("hook_that_does_not_average")), [0, 0])

    def test_functions_of_torch_distributed(self):
        self.assertEqual(run_on_free_ranks(WORLD, WithoutRecovery("functions_of_torch_distributed")), [0, 0])

    def test_state_that_differs(self):
        self.assertEqual(run_on_free_ranks(WORLD, WithoutRecovery("state_that_differs")), [0, 0])


class Alone(unittest.TestCase):
    """Errors, in a world of one."""

    def run_steps(self, state=None, step=lambda made, number: number < 2, make=lambda group: None, **options):
        narrowcast.ElasticGroup(**options).run(state or {}, make, step)

    def test_exception_of_a_step(self):
        error = KeyError("the program's own")

        def step(_made, number):
            if number == 1:
                raise error
            return True

        with self.assertRaises(KeyError) as caught:
            self.run_steps(step=step)
        self.assertIs(caught.exception, error)
        self.assertFalse(dist.is_initialized())

    def test_interrupt_in_cpp(self):
        """Python raises it at the entry of the next callback. So does this function."""
        def interrupt(frame, _event, _argument):
            if frame.f_code.co_name == "answer":
                raise KeyboardInterrupt

        def step(_made, _number):
            sys.settrace(interrupt)
            return True

        with self.assertRaises(KeyboardInterrupt):
            self.run_steps(step=step)
        self.assertIsNone(sys.gettrace())

    def test_drop_that_fails(self):
        """Ends the run, with the first error."""
        destroy = dist.destroy_process_group

        def destroy_and_fail():
            destroy()
            raise ValueError("of the drop")

        with mock.patch.object(dist, "destroy_process_group", destroy_and_fail):
            with self.assertRaisesRegex(ValueError, "of the drop"):
                self.run_steps()
            with self.assertRaisesRegex(KeyError, "of the step"):
                self.run_steps(step=lambda made, number: {}["of the step"])

    def test_steps(self):
        taken = []
        self.run_steps(step=lambda made, number: taken.append((made, number)) or number < 7, make=lambda group: group.size(),
                       first_step=5)
        self.assertEqual(taken, [(1, 5), (1, 6), (1, 7)])

    def test_tensor_whose_shape_changes(self):
        tensor = torch.zeros(3)
        with self.assertRaisesRegex(ValueError, r"state: 'counts' was Float \[3\] and is now Float \[4\]"):
            self.run_steps({"counts": tensor}, step=lambda made, number: tensor.resize_(4) is tensor)

    def test_buffer_that_is_replaced(self):
        model = nn.BatchNorm1d(3)

        def step(_made, _number):
            model.running_mean = model.running_mean + 1
            return True

        with self.assertRaisesRegex(ValueError, "state: 'net.running_mean' is another tensor now; change it in place"):
            self.run_steps({"net": model}, step=step)

    def test_buffer_that_appears(self):
        model = nn.Linear(3, 3)
        model.register_buffer("mean", None)
        with self.assertRaisesRegex(ValueError, "state: 'net.mean' is new now"):
            self.run_steps({"net": model}, step=lambda made, number: setattr(model, "mean", torch.ones(3)) is None)

    def test_parameter_that_goes(self):
        model = nn.Linear(3, 3)
        with self.assertRaisesRegex(ValueError, "state: 'net.bias' is gone now"):
            self.run_steps({"net": model}, step=lambda made, number: setattr(model, "bias", None) is None)

    def test_wrong_parts(self):
        scheduler = torch.optim.lr_scheduler.LambdaLR(torch.optim.SGD([nn.Parameter(torch.ones(1))], lr=1), Schedule())
        for part, expected in ((3, "state: 'part' must be a tensor, .* but is a int"),
                               ((print,), "state: 'part' must be"),
                               (scheduler, r"state: part\['lr_lambdas'\].* cannot be sent; add this part by two functions")):
            with self.assertRaisesRegex(TypeError, expected):
                self.run_steps({"part": part})

    def test_step_without_a_result(self):
        with self.assertRaisesRegex(TypeError, "step: must return whether there is another step, .* but returned None"):
            self.run_steps(step=lambda made, number: None)

    def test_wrong_options(self):
        for options, expected in (({"first_step": -1}, "first_step: must be at least 0, but is -1"),
                                  ({"timeout_seconds": 0}, "timeout of 0 ms must be greater than 0"),
                                  ({"timeout_seconds": 1e9}, "timeout_seconds: must be in .* but is 1e"),
                                  ({"timeout_seconds": float("nan")}, "timeout_seconds: must be in .* but is nan"),
                                  ({"silence_seconds": 2}, "silence of 2000 ms must be 0 or at least 3000")):
            with self.assertRaisesRegex(ValueError, expected):
                self.run_steps(**options)

    def test_option_of_a_wrong_type(self):
        with self.assertRaisesRegex(TypeError, "copies_state: must be bool, but is str yes"):
            narrowcast.ElasticGroup(copies_state="yes")

    def test_second_run(self):
        elastic = narrowcast.ElasticGroup()
        elastic.run({}, lambda group: None, lambda made, number: False)
        with self.assertRaisesRegex(RuntimeError, "runs once"):
            elastic.run({}, lambda group: None, lambda made, number: False)


class Schedule:
    """A function with a state, which LambdaLR saves."""

    def __init__(self):
        self.device = torch.device("cpu")

    def __call__(self, _step):
        return 1


class Losses(unittest.TestCase):
    def test_texts(self):
        callback = "Got the following error when running the callback: "
        gloo = "[/pytorch/third_party/gloo/gloo/transport/tcp/pair.cc:538] Read error [127.0.0.1]:1: Connection reset by peer"
        barrier = "[Rank 0]: Rank 1 failed to pass monitoredBarrier in 30000 ms"
        for text, expected in ((gloo, gloo),
                               (callback + "RuntimeError: " + callback + "RuntimeError: " + gloo, gloo),
                               (callback + "RuntimeError: rank 0: bucket 1 failed: x", "rank 0: bucket 1 failed: x"),
                               (callback + "torch.distributed.DistBackendError: x", "x"),
                               (barrier, barrier),
                               (barrier + "\n Original exception: \n" + gloo, gloo),
                               (callback + "KeyError: " + gloo, None),
                               (callback + "RuntimeError: of the program", None),
                               ("rank 0: reading failed: of the program", None)):
            self.assertEqual(_loss(RuntimeError(text)), expected, text)
        self.assertIsNotNone(_loss(RuntimeError("Rank 1 successfully reached monitoredBarrier, but received errors")))
        self.assertIsNone(_loss(ValueError(gloo)))
        self.assertEqual(_loss(dist.DistNetworkError("x")), "x")


class Buckets(unittest.TestCase):
    def test_order_and_shared_parameters(self):
        """Buckets are those of the models in the order of their constructors, also if they share parameters."""
        models = [nn.Linear(2, 2), nn.Linear(3, 3)]
        models.append(nn.ModuleList([models[1], models[0]]))
        buckets = BucketsOfRun()
        dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)
        try:
            for _ in range(2):
                with buckets.making():
                    made = [DistributedDataParallel(each, find_unused_parameters=True, bucket_cap_mb=.00001) for each in models]
                self.assertEqual([id(each) for each in buckets.models()], [id(each) for each in made])
                self.assertTrue(buckets.are_settled())
                found = [[len(bucket) for bucket in each] for each in buckets._settled]
                self.assertEqual([sum(each) for each in found], [2, 2, 4])
                made.clear()
                self.assertTrue(buckets.are_settled())
        finally:
            dist.destroy_process_group()


class StateDicts(unittest.TestCase):
    def test_state_of_schedulers_and_optimizers(self):
        parameters = [nn.Parameter(torch.ones(3)), nn.Parameter(torch.ones(2, 2))]
        optimizer = torch.optim.AdamW(parameters, lr=.1, betas=(.8, .9))
        for each in parameters:
            each.grad = torch.ones_like(each)
        optimizer.step()
        plateau = torch.optim.lr_scheduler.ReduceLROnPlateau(optimizer)  # Its best value is infinite.
        steps = torch.optim.lr_scheduler.MultiStepLR(optimizer, [3, 3, 5])  # Its milestones are a Counter.
        for each in optimizer, plateau, steps, torch.amp.GradScaler("cpu"):
            saved = each.state_dict()
            found = from_tensors(to_tensors(saved, "part"))
            self.assertEqual(list(leaves(found)), list(leaves(saved)))
            self.assertEqual(repr(found), repr(saved))  # Types, too.


if __name__ == "__main__":
    unittest.main()

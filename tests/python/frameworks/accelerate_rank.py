"""The program of one rank of accelerate_test: compares a training by Accelerate with a plain loop."""
import contextlib
import tempfile
import unittest

import torch
import torch.distributed as dist
from accelerate import Accelerator, DDPCommunicationHookType, DistributedDataParallelKwargs
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, TensorDataset

import narrowcast

WORLD = 2
SENT = {"node_size": 1}  # Each rank counts as a machine, so that gradients are sent and rounded.
ACCUMULATED = 2
NORM = .1


def make_model():
    torch.manual_seed(0)
    return torch.nn.Sequential(torch.nn.Linear(61, 160), torch.nn.Tanh(), torch.nn.Linear(160, 7))


def sgd(model):
    return torch.optim.SGD(model.parameters(), lr=.1)


def loss_of(model, batch):
    return torch.nn.functional.mse_loss(model(batch[0]), batch[1])


def batches():
    generator = torch.Generator().manual_seed(1)
    return DataLoader(TensorDataset(torch.randn(128, 61, generator=generator), torch.randn(128, 7, generator=generator)), batch_size=8)


def flat(model):
    return torch.cat([each.detach().flatten() for each in model.parameters()])


def by_accelerate(kwargs=None, hook="int8"):
    """The wrapped model after an epoch, its hook, and the accelerator."""
    accelerator = Accelerator(cpu=True, gradient_accumulation_steps=ACCUMULATED, kwargs_handlers=[kwargs] if kwargs else None)
    model = make_model()
    model, optimizer, loader = accelerator.prepare(model, sgd(model), batches())
    hook = narrowcast.register(model, hook, **SENT) if hook else None
    for batch in loader:
        with accelerator.accumulate(model):
            accelerator.backward(loss_of(model, batch))
            if accelerator.sync_gradients:
                accelerator.clip_grad_norm_(model.parameters(), NORM)
            optimizer.step()
            optimizer.zero_grad()
    return model, hook, accelerator


def by_a_loop(hook=None):
    """The parameters after an epoch without Accelerate, with a CommHook or without one."""
    model = DistributedDataParallel(make_model())
    if hook is not None:
        model.register_comm_hook(hook, narrowcast.comm_hook)
    optimizer = sgd(model)
    for number, batch in enumerate(list(batches())[dist.get_rank()::WORLD]):
        accumulates = (number + 1) % ACCUMULATED
        with model.no_sync() if accumulates else contextlib.nullcontext():
            (loss_of(model, batch) / ACCUMULATED).backward()
        if not accumulates:
            torch.nn.utils.clip_grad_norm_(model.parameters(), NORM)
            optimizer.step()
            optimizer.zero_grad()
    return flat(model)


class Rank(unittest.TestCase):
    def check_equal_on_all_ranks(self, parameters):
        of_ranks = [torch.empty_like(parameters) for _ in range(WORLD)]
        dist.all_gather(of_ranks, parameters)
        self.assertTrue(all(each.equal(parameters) for each in of_ranks))

    def test_prepared_model(self):
        for kwargs in (None, DistributedDataParallelKwargs(gradient_as_bucket_view=True)):
            model, hook, accelerator = by_accelerate(kwargs)
            self.check_equal_on_all_ranks(flat(model))
            plain = narrowcast.CommHook("int8", **SENT)
            self.assertTrue(flat(model).equal(by_a_loop(plain)))
            self.assertFalse(flat(model).equal(by_a_loop()))  # Rounding is visible.
            self.assertEqual(hook.name, "int8")
            self.assertGreater(hook.payload_bytes_sent, 0)
            self.assertEqual(hook.payload_bytes_sent, plain.payload_bytes_sent)
            self.assertNotIsInstance(accelerator.unwrap_model(model), DistributedDataParallel)

    def test_checkpoint(self):
        """save_state and load_state work with a model that has a hook."""
        model, _, accelerator = by_accelerate()
        trained = flat(model)
        with tempfile.TemporaryDirectory() as own:
            folder = [own]
            dist.broadcast_object_list(folder)
            accelerator.save_state(folder[0])
            accelerator.wait_for_everyone()
            for each in model.parameters():
                each.data.zero_()
            accelerator.load_state(folder[0])
            accelerator.wait_for_everyone()
        self.assertTrue(flat(model).equal(trained))

    def test_keyword_arguments_do_not_take_other_hooks(self):
        """If this fails, Accelerate has changed, and docs/guide/python-frameworks.md is wrong."""
        model, _, _ = by_accelerate(DistributedDataParallelKwargs(comm_hook=narrowcast.comm_hook), hook=None)
        self.assertTrue(flat(model).equal(by_a_loop()))

    def test_two_hooks_are_an_error(self):
        with self.assertRaisesRegex(RuntimeError, "register_comm_hook or register_builtin_comm_hook can only be called once"):
            by_accelerate(DistributedDataParallelKwargs(comm_hook=DDPCommunicationHookType.POWER_SGD,
                                                        comm_state_option={"start_powerSGD_iter": 2}))

    def test_model_that_is_not_distributed(self):
        with self.assertRaisesRegex(TypeError, "model: must be a DistributedDataParallel, but is a Linear"):
            narrowcast.register(torch.nn.Linear(2, 3), "int8")


if __name__ == "__main__":
    torch.set_num_threads(1)
    unittest.main(failfast=True)  # The launcher ends the other ranks.

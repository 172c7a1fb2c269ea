"""The program of one rank of lightning_test: compares trainings by Lightning with a plain loop, and checks checkpoints."""
import os
import pathlib
import pickle
import sys
import tempfile
import unittest

import pytorch_lightning as lightning
import torch
import torch.distributed as dist
from pytorch_lightning.overrides.distributed import _register_ddp_comm_hook
from pytorch_lightning.strategies import DDPStrategy
from torch.distributed.algorithms.ddp_comm_hooks.default_hooks import bf16_compress_wrapper
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, DistributedSampler, TensorDataset

import narrowcast

sys.path.append(str(pathlib.Path(__file__).resolve().parents[3] / "docs/examples"))
from lightning_from_python import AverageGradients  # noqa: E402 -- found by the line above

WORLD = 2
SENT = {"node_size": 1}  # Each rank counts as a machine, so that gradients are sent and rounded.


class Net(lightning.LightningModule):
    def __init__(self):
        super().__init__()
        torch.manual_seed(0)
        self.layers = torch.nn.Sequential(torch.nn.Linear(61, 160), torch.nn.Tanh(), torch.nn.Linear(160, 7))

    def training_step(self, batch, _number):
        return torch.nn.functional.mse_loss(self.layers(batch[0]), batch[1])

    def forward(self, batch):
        return self.training_step(batch, 0)

    def configure_optimizers(self):
        return torch.optim.SGD(self.parameters(), lr=.1)


def data():
    generator = torch.Generator().manual_seed(1)
    return TensorDataset(torch.randn(128, 61, generator=generator), torch.randn(128, 7, generator=generator))


def flat(model):
    return torch.cat([each.detach().flatten() for each in model.parameters()])


def make_trainer(strategy="ddp", callbacks=(), **options):
    return lightning.Trainer(accelerator="cpu", devices=WORLD, strategy=strategy, callbacks=list(callbacks), enable_progress_bar=False,
                             enable_model_summary=False, logger=False, **{"max_epochs": 1, "enable_checkpointing": False, **options})


def by_lightning(strategy="ddp", callbacks=(), **options):
    """The parameters after an epoch, and the trainer."""
    model, trainer = Net(), make_trainer(strategy, callbacks, **options)
    trainer.fit(model, DataLoader(data(), batch_size=8))
    return flat(model), trainer


def by_a_loop(hook=None, wrap=lambda hook: hook):
    """The parameters after an epoch without Lightning, with a CommHook or without one. Lightning shuffles in the same way."""
    model = DistributedDataParallel(Net())
    if hook is not None:
        model.register_comm_hook(hook, wrap(narrowcast.comm_hook))
    optimizer = model.module.configure_optimizers()
    for batch in DataLoader(data(), batch_size=8, sampler=DistributedSampler(data())):
        optimizer.zero_grad()
        model(batch).backward()
        optimizer.step()
    return flat(model)


class OnCpu(DDPStrategy):
    """Registers the hook of its arguments in the way of Lightning. DDPStrategy does it on GPUs only."""

    def _register_ddp_hooks(self):
        _register_ddp_comm_hook(self.model, self._ddp_comm_state, self._ddp_comm_hook, self._ddp_comm_wrapper)


class Rank(unittest.TestCase):
    def check_equal_on_all_ranks(self, parameters):
        of_ranks = [torch.empty_like(parameters) for _ in range(WORLD)]
        dist.all_gather(of_ranks, parameters)
        self.assertTrue(all(each.equal(parameters) for each in of_ranks))

    def test_callback(self):
        average = AverageGradients("int8", **SENT)
        parameters, _ = by_lightning(callbacks=[average])
        self.check_equal_on_all_ranks(parameters)
        hook = narrowcast.CommHook("int8", **SENT)
        self.assertTrue(parameters.equal(by_a_loop(hook)))
        self.assertFalse(parameters.equal(by_a_loop()))  # Rounding is visible.
        self.assertEqual(average.hook.name, "int8")
        self.assertGreater(average.hook.payload_bytes_sent, 0)
        self.assertEqual(average.hook.payload_bytes_sent, hook.payload_bytes_sent)

    def test_accumulation_and_clipping(self):
        average = AverageGradients("int8", **SENT)
        parameters, _ = by_lightning(callbacks=[average], accumulate_grad_batches=4, gradient_clip_val=.01)
        self.check_equal_on_all_ranks(parameters)
        every_batch = AverageGradients("int8", **SENT)
        by_lightning(callbacks=[every_batch])
        self.assertEqual(4 * average.hook.payload_bytes_sent, every_batch.hook.payload_bytes_sent)

    def test_arguments_of_the_strategy(self):
        for wrapper in (None, bf16_compress_wrapper):
            with self.subTest(wrapper=wrapper):
                state = narrowcast.CommHook("int8", **SENT)
                strategy = OnCpu(ddp_comm_state=state, ddp_comm_hook=narrowcast.comm_hook, ddp_comm_wrapper=wrapper)
                self.assertEqual(pickle.loads(pickle.dumps(strategy))._ddp_comm_state.name, "int8")
                parameters, trainer = by_lightning(strategy)
                self.check_equal_on_all_ranks(parameters)
                self.assertTrue(parameters.equal(by_a_loop(narrowcast.CommHook("int8", **SENT), wrapper or (lambda hook: hook))))
                sent = state.payload_bytes_sent
                self.assertGreater(sent, 0)
                # A second fit of the same trainer has the same state.
                trainer.fit_loop.max_epochs = 2
                model = Net()
                trainer.fit(model, DataLoader(data(), batch_size=8))
                self.check_equal_on_all_ranks(flat(model))
                self.assertEqual(state.payload_bytes_sent, 2 * sent)

    def test_arguments_of_the_strategy_have_no_effect_on_a_cpu(self):
        """If this fails, Lightning has changed, and docs/guide/python-frameworks.md is wrong."""
        state = narrowcast.CommHook("int8", **SENT)
        parameters, _ = by_lightning(DDPStrategy(ddp_comm_state=state, ddp_comm_hook=narrowcast.comm_hook))
        self.assertTrue(parameters.equal(by_a_loop()))
        with self.assertRaisesRegex(RuntimeError, "hook 'int8' is not made"):
            state.payload_bytes_sent

    def test_checkpoint(self):
        """The state of error feedback is in the checkpoint, and is resumed."""
        average = AverageGradients("int8", error_feedback=True, **SENT)
        _, trainer = by_lightning(callbacks=[average])
        with tempfile.TemporaryDirectory() as own:
            folder = [own]
            dist.broadcast_object_list(folder)
            file = os.path.join(folder[0], "trained.ckpt")
            trainer.save_checkpoint(file)
            saved = torch.load(file)["hook"]
            self.assertEqual([each["rank"] for each in saved], list(range(WORLD)))
            own_state = average.hook.state_dict(trainer.lightning_module)["tensors"]
            self.check_same(saved[dist.get_rank()]["tensors"], own_state)
            self.assertTrue(any(each.count_nonzero() for each in own_state.values()))

            resumed = Resuming("int8", error_feedback=True, **SENT)
            model = Net()
            make_trainer(callbacks=[resumed], max_epochs=2).fit(model, DataLoader(data(), batch_size=8), ckpt_path=file)
            self.check_same(resumed.first_state["tensors"], own_state)
            self.check_equal_on_all_ranks(flat(model))
            dist.barrier()

    def check_same(self, tensors, expected):
        self.assertEqual(list(tensors), list(expected))
        for name, each in tensors.items():
            self.assertTrue(each.equal(expected[name]), name)


class Resuming(AverageGradients):
    """Keeps the state of the hook with which it begins."""

    def on_fit_start(self, trainer, module):
        super().on_fit_start(trainer, module)
        self.first_state = self.hook.state_dict(module)


if __name__ == "__main__":
    torch.set_num_threads(1)
    unittest.main(failfast=True)  # The launcher ends the other ranks.

"""A Lightning training with gradients that narrowcast averages. It learns to predict the byte that follows 16 others.

  python lightning_from_python.py --data=README.md --hook=int8 --node_size=1
"""
import argparse
import pathlib

import pytorch_lightning as lightning
import torch
import torch.distributed as dist
from torch import nn

import narrowcast

CONTEXT = 16  # Bytes of the model's input.


class AverageGradients(lightning.Callback):
    """Averages gradients with a hook of that name. Checkpoints contain its state."""

    def __init__(self, name="auto", **options):
        self.name, self.options, self.saved = name, options, None

    def on_fit_start(self, trainer, module):
        self.hook = narrowcast.register(trainer.strategy.model, self.name, **self.options)
        if self.saved is not None:
            self.hook.load_state_dict(self.saved, module)

    def on_save_checkpoint(self, trainer, module, checkpoint):
        checkpoint["hook"] = [None] * trainer.world_size  # All ranks call this. Rank 0 writes the file.
        dist.all_gather_object(checkpoint["hook"], self.hook.state_dict(module))

    def on_load_checkpoint(self, trainer, module, checkpoint):
        self.saved = checkpoint["hook"]


class NextByte(lightning.LightningModule):
    """Knows nothing of narrowcast."""

    def __init__(self):
        super().__init__()
        self.layers = nn.Sequential(nn.Embedding(256, 32), nn.Flatten(), nn.Linear(32 * CONTEXT, 512), nn.ReLU(), nn.Linear(512, 256))

    def training_step(self, windows, batch):
        loss = nn.functional.cross_entropy(self.layers(windows[:, :-1]), windows[:, -1])
        if self.global_step % 20 == 0:
            self.print(f"step {self.global_step + 1}: loss {loss.item():.3f}", flush=True)
        return loss

    def configure_optimizers(self):
        return torch.optim.AdamW(self.parameters(), lr=3e-3)


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--data", required=True, help="any file")
    parser.add_argument("--hook", default="auto", help="a hook, as docs/reference/hooks.md has them")
    parser.add_argument("--node_size", type=int, help="ranks of a node (default: found)")
    parser.add_argument("--devices", type=int, default=2, help="ranks of this machine")
    parser.add_argument("--steps", type=int, default=200)
    arguments = parser.parse_args()
    lightning.seed_everything(0)
    text = torch.frombuffer(bytearray(pathlib.Path(arguments.data).read_bytes()), dtype=torch.uint8).long()
    batches = torch.utils.data.DataLoader(text.unfold(0, CONTEXT + 1, 1), batch_size=64, shuffle=True)
    average = AverageGradients(arguments.hook, node_size=arguments.node_size)
    trainer = lightning.Trainer(strategy="ddp", devices=arguments.devices, callbacks=[average], max_steps=arguments.steps,
                                gradient_clip_val=1., enable_progress_bar=False, enable_checkpointing=False, logger=False)
    trainer.fit(NextByte(), batches)
    if trainer.is_global_zero:
        print(f"hook {average.hook.name}: rank 0 sent {average.hook.payload_bytes_sent / 1e6:.1f} MB {average.hook.decision}")


if __name__ == "__main__":
    main()

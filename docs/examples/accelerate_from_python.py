"""A training with Hugging Face Accelerate and gradients that narrowcast averages. It learns to predict the byte that follows
16 others.

  torchrun --nproc_per_node=2 --standalone accelerate_from_python.py --data=README.md --hook=int8 --node_size=1
"""
import argparse
import itertools
import pathlib

import torch
from accelerate import Accelerator
from torch import nn

import narrowcast

CONTEXT = 16  # Bytes of the model's input.


def train(arguments):
    text = torch.frombuffer(bytearray(pathlib.Path(arguments.data).read_bytes()), dtype=torch.uint8).long()
    torch.manual_seed(0)
    model = nn.Sequential(nn.Embedding(256, 32), nn.Flatten(), nn.Linear(32 * CONTEXT, 512), nn.ReLU(), nn.Linear(512, 256))
    optimizer = torch.optim.AdamW(model.parameters(), lr=3e-3)
    batches = torch.utils.data.DataLoader(text.unfold(0, CONTEXT + 1, 1), batch_size=64, shuffle=True)

    accelerator = Accelerator(cpu=not torch.cuda.is_available(), gradient_accumulation_steps=2)
    model, optimizer, batches = accelerator.prepare(model, optimizer, batches)
    hook = narrowcast.register(model, arguments.hook, node_size=arguments.node_size)

    epochs = itertools.repeat(batches)
    for step, windows in zip(range(arguments.steps), itertools.chain.from_iterable(epochs)):
        with accelerator.accumulate(model):
            loss = nn.functional.cross_entropy(model(windows[:, :-1]), windows[:, -1])
            accelerator.backward(loss)
            if accelerator.sync_gradients:
                accelerator.clip_grad_norm_(model.parameters(), 1.)
            optimizer.step()
            optimizer.zero_grad()
        if step % 20 == 0 or step + 1 == arguments.steps:
            accelerator.print(f"step {step + 1}: loss {loss.item():.3f}", flush=True)
    accelerator.print(f"hook {hook.name}: rank 0 sent {hook.payload_bytes_sent / 1e6:.1f} MB {hook.decision}")

    if arguments.output:
        accelerator.save_state(arguments.output)
        torch.save(hook.state_dict(model), f"{arguments.output}/hook{accelerator.process_index}.pt")
    accelerator.end_training()


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--data", required=True, help="any file")
    parser.add_argument("--hook", default="auto", help="a hook, as docs/reference/hooks.md has them")
    parser.add_argument("--node_size", type=int, help="ranks of a node (default: found)")
    parser.add_argument("--steps", type=int, default=200)
    parser.add_argument("--output", help="a folder for a checkpoint")
    train(parser.parse_args())


if __name__ == "__main__":
    main()

#!/usr/bin/env python3
"""One rank of a training in Python that `train` compares with narrowcast-train: PyTorch's DistributedDataParallel on
the same char_gpt, batches and optimizer. The hook is one of PyTorch's or one of narrowcast's.
Flags are as for narrowcast-train. Rank 0 writes metrics.jsonl, with the number of parameters and a line for each
step."""
import argparse
import importlib
import json
import os
import pathlib
import sys
import time

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.algorithms.ddp_comm_hooks import debugging_hooks, default_hooks
from torch.nn.parallel import DistributedDataParallel

OF_NARROWCAST = "narrowcast."  # Prefix of the names of its hooks.
OF_PYTORCH = {"bf16_compress": default_hooks.bf16_compress_hook, "noop": debugging_hooks.noop_hook}


class Block(nn.Module):
    def __init__(self, width, heads):
        super().__init__()
        self.heads = heads
        self.attention_norm, self.mlp_norm = nn.LayerNorm(width), nn.LayerNorm(width)
        self.query_key_value, self.attention_output = nn.Linear(width, 3 * width), nn.Linear(width, width)
        self.mlp_input, self.mlp_output = nn.Linear(width, 4 * width), nn.Linear(4 * width, width)

    def forward(self, x):
        parts = self.query_key_value(self.attention_norm(x)).unflatten(-1, (3, self.heads, -1)).permute(2, 0, 3, 1, 4)
        mixed = nn.functional.scaled_dot_product_attention(*parts.unbind(0), is_causal=True)
        x = x + self.attention_output(mixed.transpose(1, 2).flatten(-2))
        return x + self.mlp_output(nn.functional.gelu(self.mlp_input(self.mlp_norm(x)), approximate="tanh"))


class CharGpt(nn.Module):
    """The same model as models/bundled/gpt.cpp, with the same parameters."""

    def __init__(self, options, vocabulary_size):
        super().__init__()
        self.token_embedding = nn.Embedding(vocabulary_size, options.width)
        self.position_embedding = nn.Embedding(options.context, options.width)
        self.blocks = nn.ModuleList([Block(options.width, options.heads) for _ in range(options.layers)])
        self.final_norm = nn.LayerNorm(options.width)
        for each in self.parameters():
            if each.dim() > 1:
                nn.init.normal_(each, std=.02)

    def forward(self, tokens):
        x = self.token_embedding(tokens) + self.position_embedding.weight
        for block in self.blocks:
            x = block(x)
        return nn.functional.linear(self.final_norm(x), self.token_embedding.weight)


def parse_arguments():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--libraries", required=True, help="folder of libnarrowcast_classes.so")
    parser.add_argument("--data", type=pathlib.Path, required=True)
    parser.add_argument("--hook", required=True, help="none, bf16_compress or noop, which are PyTorch's, or narrowcast.NAME")
    parser.add_argument("--bucket_cap_mb", type=float, required=True)
    for flag in ("layers", "heads", "width", "context", "steps"):
        parser.add_argument(f"--{flag}", type=int, required=True)
    parser.add_argument("--batch_size", type=int, help="sequences of all ranks together")
    parser.add_argument("--output_dir", type=pathlib.Path)
    parser.add_argument("--dry_run", action="store_true", help="only check whether it can run")
    return parser.parse_args()


def load_narrowcast(libraries):
    """The package of this checkout with the libraries of a build."""
    os.environ["NARROWCAST_LIBRARY_DIR"] = libraries
    sys.path.append(str(pathlib.Path(__file__).resolve().parents[3] / "python"))
    return importlib.import_module("narrowcast")


def register(hook, ddp, narrowcast):
    if hook in OF_PYTORCH:
        ddp.register_comm_hook(None, OF_PYTORCH[hook])
    elif hook != "none":
        narrowcast.register(ddp, hook.removeprefix(OF_NARROWCAST))


def parameter_groups(model):
    """The matrices, which decay, and the rest, which does not."""
    matrices = [each for each in model.parameters() if each.dim() > 1]
    rest = [each for each in model.parameters() if each.dim() < 2]
    return [{"params": matrices, "weight_decay": .1}, {"params": rest, "weight_decay": 0}]


def make_optimizer(model):
    return torch.optim.AdamW(parameter_groups(model), lr=1e-3, betas=(.9, .99))


def seconds_of_steps(arguments, model, tokens, narrowcast):
    """Yields the total time of all steps so far, after each step. A step ends when all ranks know its mean loss."""
    ddp = DistributedDataParallel(model, bucket_cap_mb=arguments.bucket_cap_mb)
    optimizer = make_optimizer(model)
    windows = tokens.unfold(0, arguments.context + 1, 1)
    register(arguments.hook, ddp, narrowcast)
    began = time.perf_counter()
    for _ in range(arguments.steps):
        batch = windows[torch.randint(len(windows), (arguments.batch_size // dist.get_world_size(),))]
        loss = nn.functional.cross_entropy(ddp(batch[:, :-1]).flatten(0, 1), batch[:, 1:].flatten())
        optimizer.zero_grad()
        loss.backward()
        nn.utils.clip_grad_norm_(model.parameters(), 1)
        optimizer.step()
        dist.all_reduce(loss.detach())
        yield time.perf_counter() - began


def main():
    arguments = parse_arguments()
    torch.set_num_threads(1)
    narrowcast = load_narrowcast(arguments.libraries)
    known = ["none", *OF_PYTORCH] + [OF_NARROWCAST + name for name in narrowcast.hook_names() if name != "none"]
    if arguments.hook not in known:
        raise ValueError(f"--hook: unknown name '{arguments.hook}'; known: {', '.join(known)}")
    text = arguments.data.read_text(encoding="utf-8")
    number = {character: i for i, character in enumerate(sorted(set(text)))}
    model = CharGpt(arguments, len(number))
    if arguments.dry_run:
        return
    dist.init_process_group("gloo")
    torch.manual_seed(dist.get_rank())
    events = [{"event": "start", "parameters": sum(each.numel() for each in model.parameters())}]
    events += [{"event": "step", "step": step + 1, "seconds": seconds} for step, seconds in
              enumerate(seconds_of_steps(arguments, model, torch.tensor([number[character] for character in text]), narrowcast))]
    if dist.get_rank() == 0:
        arguments.output_dir.mkdir()
        (arguments.output_dir / "metrics.jsonl").write_text("".join(json.dumps(event) + "\n" for event in events))
    dist.destroy_process_group()
    # Gloo's threads may still be releasing tensors of PyTorch's own hooks. If Python ended normally meanwhile, it would
    # abort with SIGABRT ("terminate called without an active exception"). Nothing else is left to do.
    sys.stdout.flush()
    os._exit(0)


if __name__ == "__main__":
    main()

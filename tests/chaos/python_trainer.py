"""A training with PyTorch's DistributedDataParallel under torchrun, or with torchft: a model like the chaos tests' own.

    python_trainer.py ddp|torchft FOLDER FILE STEPS CHECKPOINT_EVERY
    python_trainer.py lighthouse PORT     # the server of torchft's replicas

DDP resumes from the newest checkpoint in FOLDER. With torchft each process is a replica group: it goes on without the
lost ones, and a new process gets the state of another. Appends a line for each step to FOLDER/run/metrics.jsonl.
"""
import datetime
import json
import os
import pathlib
import signal
import sys
import time

import torch
from torch import nn

WIDTH, CONTEXT, BATCH, TIMEOUT = 32, 32, 4, datetime.timedelta(seconds=3)


class CharGpt(nn.Module):
    """One layer, as --model=char_gpt --layers=1 --width=32 --context=32."""

    def __init__(self, characters=256):
        super().__init__()
        self.characters = nn.Embedding(characters, WIDTH)
        self.places = nn.Parameter(torch.zeros(CONTEXT, WIDTH))
        self.layer = nn.TransformerEncoderLayer(WIDTH, 4, 4 * WIDTH, dropout=0, batch_first=True, norm_first=True)
        self.head = nn.Linear(WIDTH, characters)
        self.register_buffer("mask", nn.Transformer.generate_square_subsequent_mask(CONTEXT))

    def forward(self, text):
        return self.head(self.layer(self.characters(text) + self.places, src_mask=self.mask, is_causal=True))


class Log:
    def __init__(self, folder):
        (folder / "run").mkdir(parents=True, exist_ok=True)
        self.file = open(folder / "run/metrics.jsonl", "ab", buffering=0)

    def write(self, step, ranks):
        line = {"event": "step", "step": step, "seconds": time.monotonic(), "ranks": ranks}
        self.file.write(json.dumps(line).encode() + b"\n")


def loss_of(model, text, step, rank):
    """The loss of the batch that the step and the rank decide."""
    draws = torch.Generator().manual_seed(1000 * step + rank)
    places = torch.randint(len(text) - CONTEXT - 1, (BATCH,), generator=draws)
    windows = torch.stack([text[place:place + CONTEXT + 1] for place in places])
    return nn.functional.cross_entropy(model(windows[:, :-1]).flatten(0, 1), windows[:, 1:].flatten())


def train_with_ddp(folder, text, steps, every):
    torch.distributed.init_process_group("gloo")
    rank, ranks = torch.distributed.get_rank(), torch.distributed.get_world_size()
    model = nn.parallel.DistributedDataParallel(CharGpt())
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    path, step = folder / "checkpoint.pt", 0
    if path.exists():
        state = torch.load(path)
        model.load_state_dict(state["model"])
        optimizer.load_state_dict(state["optimizer"])
        step = state["step"]
    log, is_limited = Log(folder) if rank == 0 else None, False
    while step < steps:
        optimizer.zero_grad()
        loss_of(model, text, step, rank).backward()
        optimizer.step()
        step += 1
        if not is_limited:  # Ranks start at different times.
            torch.distributed.distributed_c10d._set_pg_timeout(TIMEOUT)
            is_limited = True
        if rank == 0:
            log.write(step, ranks)
            if step % every == 0:
                state = {"model": model.state_dict(), "optimizer": optimizer.state_dict(), "step": step}
                torch.save(state, path.with_suffix(".new"))
                path.with_suffix(".new").replace(path)


def train_with_torchft(folder, text, steps):
    import torchft
    model, manager = CharGpt(), None
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)

    def load(state):
        model.load_state_dict(state["model"])
        optimizer.load_state_dict(state["optimizer"])

    replica = int(os.environ["REPLICA_GROUP_ID"])
    manager = torchft.Manager(
        pg=torchft.ProcessGroupGloo(timeout=TIMEOUT), load_state_dict=load, min_replica_size=2, timeout=3 * TIMEOUT,
        state_dict=lambda: {"model": model.state_dict(), "optimizer": optimizer.state_dict()},
        replica_id=f"replica_{replica}", hostname="127.0.0.1")
    parallel = torchft.DistributedDataParallel(manager, model)
    wrapped = torchft.Optimizer(manager, optimizer)
    log = Log(folder)
    while manager.current_step() < steps:
        before = manager.current_step()
        wrapped.zero_grad()
        loss_of(parallel, text, before, replica).backward()
        wrapped.step()
        if manager.current_step() > before:
            log.write(manager.current_step(), manager.num_participants())
    manager.shutdown(wait=False)


def serve_lighthouse(port):
    from torchft.coordination import LighthouseServer
    server = LighthouseServer(bind=f"127.0.0.1:{port}", min_replicas=2, join_timeout_ms=10000, quorum_tick_ms=100)
    print(server.address(), flush=True)
    signal.pause()


def main():
    if sys.argv[1] == "lighthouse":
        return serve_lighthouse(sys.argv[2])
    kind, folder, file, steps, every = sys.argv[1:]
    torch.manual_seed(1)
    text = torch.tensor(list(pathlib.Path(file).read_bytes()))
    if kind == "ddp":
        train_with_ddp(pathlib.Path(folder), text, int(steps), int(every))
    else:
        train_with_torchft(pathlib.Path(folder), text, int(steps))


if __name__ == "__main__":
    main()

"""Training in PyTorch's DistributedDataParallel that goes on when a rank is killed: a new process takes its place, and gets the
state of the others.

  narrowcast-run --standalone --nproc_per_node=3 --recovery=in_place --max_restarts=3 python3 elastic.py 60 checkpoint.pt

With a number, the first process of rank 1 kills itself before that step. The result has the same bits without it. With a file, a
training whose processes are all lost continues from there.
"""
import os
import signal
import sys

import torch
from torch.nn.parallel import DistributedDataParallel

import narrowcast

KILL_AT = int(sys.argv[1]) if len(sys.argv) > 1 else -1
CHECKPOINT = sys.argv[2] if len(sys.argv) > 2 else ""
IS_NEW = os.environ.get("TORCHELASTIC_RESTART_COUNT", "0") != "0"

torch.manual_seed(0)
model = torch.nn.Sequential(torch.nn.Dropout(0.1), torch.nn.Linear(8, 1))
optimizer = torch.optim.AdamW(model.parameters(), lr=0.02)


def make(group):
    ddp = DistributedDataParallel(model)
    narrowcast.register(ddp, "bf16_compress")
    return ddp


def take_step(ddp, step):
    rank, ranks = torch.distributed.get_rank(), torch.distributed.get_world_size()  # Others, if a node was lost.
    if step == KILL_AT and rank == 1 and not IS_NEW:
        os.kill(os.getpid(), signal.SIGKILL)
    torch.manual_seed(step * ranks + rank)  # The data and the dropout follow from step and rank.
    inputs = torch.randn(16, 8)
    loss = (ddp(inputs) - inputs.sum(1, keepdim=True)).square().mean()
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    if CHECKPOINT and rank == 0 and (step + 1) % 50 == 0:
        save(step + 1)
    return step + 1 < 200


def save(next_step):
    saved = {"step": next_step, "model": model.state_dict(), "optimizer": optimizer.state_dict()}
    torch.save(saved, CHECKPOINT + ".new")
    os.replace(CHECKPOINT + ".new", CHECKPOINT)  # The file is always complete.


def load():
    saved = torch.load(CHECKPOINT)
    model.load_state_dict(saved["model"])
    optimizer.load_state_dict(saved["optimizer"])
    return saved["step"]


first_step = load() if CHECKPOINT and os.path.exists(CHECKPOINT) else 0
elastic = narrowcast.ElasticGroup(first_step=first_step,
                                  on_recovery=lambda recovery: print(f"goes on with step {recovery.step}", flush=True))
elastic.run({"model": model, "optimizer": optimizer}, make, take_step)
if os.environ["RANK"] == "0":
    print(f"sum of the weights {model[1].weight.sum().item():.6f}, recoveries {elastic.recoveries}")

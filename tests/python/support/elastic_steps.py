"""A program whose steps are an ElasticGroup's, and which fails where it is told to:

  elastic_steps.py FOLDER STEPS [error_feedback] [keep] [another_state] [FAULT:RANK:STEP...]

FAULT is "kill" (before the step), "die" (by an exception, before the step), "late" (kill after optimizer.step()) or "break" (the
connections, before optimizer.step()). With "keep", the program keeps all that it makes. Each happens once, in whichever process reaches it first. Each rank writes what it has at the end, and
its files and threads after each step, to FOLDER/rank-RANK."""
import dataclasses
import os
import pathlib
import signal
import sys
import warnings

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel

import narrowcast


class Faults:
    def __init__(self, rank, folder, faults):
        self._rank, self._folder, self._faults = rank, folder, faults

    def begins(self, kind, step):
        """Whether this fault is to happen now. A file remembers it."""
        for number, fault in enumerate(self._faults):
            if fault == f"{kind}:{self._rank}:{step}":
                try:
                    (self._folder / f"fault-{number}").touch(exist_ok=False)
                    return True
                except FileExistsError:
                    pass
        return False


class Model(nn.Module):
    """Several small buckets, whose order is not that of their definition, and buffers."""

    def __init__(self):
        super().__init__()
        self.last = nn.Linear(60, 1)
        self.first = nn.Linear(8, 60)
        self.norm = nn.BatchNorm1d(60)

    def forward(self, x):
        return self.last(torch.tanh(self.norm(self.first(x))))


@dataclasses.dataclass
class Made:
    parts: list


def resources():
    return len(os.listdir("/proc/self/fd")), len(os.listdir("/proc/self/task"))


def train(folder, last, *arguments):
    rank = int(os.environ["RANK"])
    has_residuals = "error_feedback" in arguments
    faults = Faults(rank, folder, arguments)
    torch.manual_seed(rank)  # The parameters become rank 0's.
    model = Model()
    optimizer = torch.optim.AdamW(model.parameters(), lr=.01)
    scheduler = torch.optim.lr_scheduler.MultiStepLR(optimizer, [4, 9])
    scaler = torch.amp.GradScaler("cpu", init_scale=2, growth_interval=9)
    steps, losses = torch.zeros((), dtype=torch.int64), []
    state = {"model": model, "optimizer": optimizer, "scheduler": scheduler, "steps": steps,
             "scaler": scaler,
             "losses": (lambda: {"losses": torch.tensor(losses)}, lambda saved: losses.__setitem__(slice(None), saved["losses"].tolist()))}
    if "another_state" in arguments:
        state["more"] = torch.zeros(1)
    used, kept = {}, []

    def make(group):
        assert group is dist.group.WORLD and dist.get_rank() == group.rank() == rank
        ddp = DistributedDataParallel(model, bucket_cap_mb=.0001)
        hook = narrowcast.register(ddp, "int8", levels="one", link_gbit=1, link_us=100, error_feedback=has_residuals)
        if "keep" in arguments:
            kept.append(ddp)
        return Made([{"ddp": ddp, "hook": hook}])

    def take_step(made, step):
        if faults.begins("kill", step):
            os.kill(os.getpid(), signal.SIGKILL)
        if faults.begins("die", step):
            raise KeyError(f"no data for step {step}")
        if step == 300:
            (folder / f"begun-{rank}").touch()
        ddp = made.parts[0]["ddp"]
        inputs = torch.randn(16, 8, generator=torch.Generator().manual_seed(100 * step + rank))
        loss = (ddp(inputs) - inputs.sum(1, keepdim=True)).square().mean()
        scaler.scale(loss).backward()
        scaler.unscale_(optimizer)
        if faults.begins("break", step):
            raise dist.DistBackendError("a broken connection")
        scaler.step(optimizer)
        scaler.update()
        optimizer.zero_grad()
        scheduler.step()
        steps.add_(1)
        mean = loss.detach().clone()
        dist.all_reduce(mean)
        losses.append(mean.item())
        if faults.begins("late", step):
            os.kill(os.getpid(), signal.SIGKILL)
        used[step] = resources()
        return step + 1 < last

    elastic = narrowcast.ElasticGroup(
        on_recovery=lambda recovery: print(f"rank {rank} goes on with step {recovery.step}, lost {recovery.lost_ranks}", flush=True))
    elastic.run(state, make, take_step)
    print(f"rank {rank} ends after {steps.item()} steps, {elastic.recoveries} recoveries", flush=True)
    torch.save(({"model": model.state_dict(), "optimizer": optimizer.state_dict(), "scheduler": scheduler.state_dict(),
                 "scaler": scaler.state_dict(),
                 "losses": losses, "steps": steps}, used), folder / f"rank-{rank}")


if __name__ == "__main__":
    warnings.simplefilter("error", UserWarning)  # Of buckets that have changed.
    if "keep" in sys.argv:
        warnings.filterwarnings("always", "make: something else")
    torch.set_num_threads(1)
    train(pathlib.Path(sys.argv[1]), int(sys.argv[2]), *sys.argv[3:])

"""Ranks that end as a case of exits_test requires. `ending_rank.py CASE` is a rank of a launcher. Without CASE the program
forks ranks, as fork_ranks explains."""
import datetime
import gc
import os
import signal
import sys
from unittest import mock

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel

import narrowcast
from narrowcast.ddp_comm_hooks.default_hooks import allreduce_hook

TIMEOUT = datetime.timedelta(seconds=5)  # Of the group of a rank that hangs, if no watch notices it.
SILENCE = 5  # Seconds in which a watch notices a rank that hangs.
PATIENCE = datetime.timedelta(seconds=120)  # Of all other groups.


def make_ddp(register=True, group=None, **options):
    torch.manual_seed(0)
    ddp = DistributedDataParallel(nn.Sequential(nn.Linear(30, 50), nn.Tanh(), nn.Linear(50, 8)), process_group=group)
    return ddp, narrowcast.register(ddp, "int8", **{"levels": "one", **options}) if register else None


def take_step(ddp):
    ddp(torch.randn(16, 30)).square().mean().backward()


class Failing(torch.autograd.Function):
    """Its derivative raises."""

    @staticmethod
    def forward(ctx, x):
        return x.clone()

    @staticmethod
    def backward(ctx, gradient):
        raise KeyError("the model's own error")


def destroy():
    """A hook of each kind."""
    ddp, _ = make_ddp()
    take_step(ddp)
    second, _ = make_ddp(register=False)
    second.register_comm_hook(None, allreduce_hook)
    take_step(second)
    dist.destroy_process_group()


def end():
    ddp, _ = make_ddp()
    take_step(ddp)


def close_first():
    ddp, hook = make_ddp()
    take_step(ddp)
    hook.close()
    dist.destroy_process_group()


def close_last():
    ddp, hook = make_ddp()
    take_step(ddp)
    dist.destroy_process_group()
    hook.close()


def diloco():
    """Ends with an exchange under way."""
    model = nn.Linear(30, 8)
    outer = narrowcast.DiLoCo(torch.optim.SGD(model.parameters(), lr=.1), sync_every=2, overlap_steps=1)
    for _ in range(2):
        model(torch.randn(16, 30)).square().mean().backward()
        outer.step()


def system_exit():
    ddp, _ = make_ddp()
    take_step(ddp)
    loss = ddp(torch.randn(16, 30)).square().mean()
    if dist.get_rank() == 1:
        sys.exit(7)
    loss.backward()


def exception():
    """On all ranks, after the buckets' exchange was submitted."""
    ddp, _ = make_ddp()
    take_step(ddp)
    ddp(Failing.apply(torch.ones(16, 30, requires_grad=True))).sum().backward()


def in_flight():
    """Rank 0 submits a bucket that rank 1 does not, and does not wait for it."""
    ddp, hook = make_ddp()
    take_step(ddp)
    if dist.get_rank() == 0:
        kept = []

        def submitting(state, bucket):
            kept.append(state.run(bucket))
            done = torch.futures.Future()
            done.set_result(bucket.buffer().clone())
            return done

        second, _ = make_ddp(register=False, group=dist.new_group([0]))
        second.register_comm_hook(hook, submitting)
        take_step(second)
        print("in flight:", not kept[0].done(), flush=True)
    else:
        dist.new_group([0])


def worker_processes():
    """A DataLoader forks its workers after the hook was made."""
    ddp, _ = make_ddp()
    take_step(ddp)
    for batch in torch.utils.data.DataLoader(torch.randn(32, 30), batch_size=16, num_workers=1):
        ddp(batch).square().mean().backward()
    dist.destroy_process_group()


def forked_child():
    """A child that ends as any Python program. It must not close the hook, whose threads it does not have."""
    module = sys.modules["narrowcast.comm_hook"]  # The package has a function of this name.
    close_with = module.close_with

    def telling(owner, close):
        return close_with(owner, lambda: (print(f"closed by {os.getpid()}\n", end="", flush=True), close()))

    with mock.patch.object(module, "close_with", telling):
        ddp, _ = make_ddp()
    take_step(ddp)
    child = os.fork()
    if child == 0:
        sys.exit(3)
    _, status = os.waitpid(child, 0)
    print("child:", os.waitstatus_to_exitcode(status), flush=True)
    take_step(ddp)
    dist.destroy_process_group()


def interrupted():
    """Trains until a signal ends it. Rank 1 prints when it begins."""
    ddp = trained_ddp(TIMEOUT)
    if dist.get_rank() == 1:
        print("ready", flush=True)
    while True:
        take_step(ddp)


def killed():
    """Rank 1 kills itself between two steps."""
    stopped_by(signal.SIGKILL, trained_ddp(PATIENCE))


def hung():
    """Rank 1 stops itself between two steps."""
    stopped_by(signal.SIGSTOP, trained_ddp(PATIENCE, silence_seconds=SILENCE))


def hung_in_its_node():
    """The same, with ranks that share memory, as they do by default on one machine."""
    stopped_by(signal.SIGSTOP, trained_ddp(PATIENCE, silence_seconds=SILENCE, levels="auto"))


def hung_without_a_watch():
    stopped_by(signal.SIGSTOP, trained_ddp(TIMEOUT, silence_seconds=0))


def hung_first_rank():
    """Rank 0, which serves the store where no launcher does."""
    stopped_by(signal.SIGSTOP, trained_ddp(PATIENCE, silence_seconds=SILENCE), stopped=0)


def hung_in_a_collective():
    """The others wait in a collective of PyTorch."""
    ddp = trained_ddp(PATIENCE, silence_seconds=SILENCE)
    stopped_by(signal.SIGSTOP, ddp, step=lambda: dist.all_reduce(torch.ones(1), group=ddp.process_group))


def hung_in_an_outer_step():
    model = nn.Linear(30, 8)
    outer = narrowcast.DiLoCo(torch.optim.SGD(model.parameters(), lr=.1), sync_every=1, silence_seconds=SILENCE)
    model(torch.randn(16, 30)).square().mean().backward()
    stopped_by(signal.SIGSTOP, step=outer.step)


def trained_ddp(timeout, **options):
    ddp, _ = make_ddp(group=dist.new_group(timeout=timeout), **options)
    for _ in range(2):  # DistributedDataParallel itself communicates before its second step.
        take_step(ddp)
    return ddp


def stopped_by(number, ddp=None, stopped=1, step=None):
    dist.barrier()
    if dist.get_rank() == stopped:
        print("ready", flush=True)
        os.kill(os.getpid(), number)
    take_step(ddp) if step is None else step()


def fork_ranks():
    """For each line `CASE WORLD_SIZE STORE` of the standard input: runs the case on forks of this process, which has imported
    torch and has one thread. Once all ranks have ended or stopped, kills the stopped ones. Prints how each rank ended. Returns
    in the ranks, with the case and the store; a rank then ends as any other Python program."""
    import torch._dynamo  # Each DistributedDataParallel needs it.
    gc.freeze()  # At its end a rank then leaves the memory of the modules alone. Copies would take it most of its time.
    for line in sys.stdin:
        case, world_size, store = line.split()
        ranks, stopped = {}, set()
        for rank in range(int(world_size)):
            pid = os.fork()
            if pid == 0:
                os.environ.update(RANK=str(rank), WORLD_SIZE=world_size)
                return case, store
            ranks[pid] = rank
        while ranks:
            pid, status = os.waitpid(-1, os.WUNTRACED)
            if os.WIFSTOPPED(status):
                stopped.add(pid)
            else:
                print(f"end of rank {ranks.pop(pid)}: {os.waitstatus_to_exitcode(status)}", flush=True)
            if ranks.keys() == stopped:
                for each in stopped:
                    os.kill(each, signal.SIGKILL)
                stopped = set()
        print("all ended", flush=True)
    sys.exit()


if __name__ == "__main__":
    torch.set_num_threads(1)
    name, meeting = fork_ranks() if len(sys.argv) == 1 else (sys.argv[1], "env://")
    print(f"pid of rank {os.environ['RANK']}: {os.getpid()}", flush=True)
    dist.init_process_group("gloo", init_method=meeting, rank=int(os.environ["RANK"]), world_size=int(os.environ["WORLD_SIZE"]),
                            timeout=PATIENCE)
    globals()[name]()

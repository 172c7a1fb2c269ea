"""Trains ten steps with gradients in 8 bits, on the ranks of torchrun. Fails unless all of narrowcast is in sys.prefix."""
import pathlib
import sys

import narrowcast
import torch

torch.distributed.init_process_group("cpu:gloo")
torch.manual_seed(0)
model = torch.nn.parallel.DistributedDataParallel(torch.nn.Linear(64, 64))
narrowcast.register(model, "int8")
optimizer = torch.optim.SGD(model.parameters(), lr=1)
torch.manual_seed(torch.distributed.get_rank())
losses = []
for step in range(10):
    loss = model(torch.randn(32, 64)).square().mean()
    loss.backward()
    optimizer.step()
    optimizer.zero_grad()
    losses.append(loss.item())
assert losses[-1] < 0.8 * losses[0], losses

ranks = [torch.empty(64, 64) for _ in range(torch.distributed.get_world_size())]
torch.distributed.all_gather(ranks, model.module.weight.detach())
assert len(ranks) == 2 and torch.equal(*ranks), "the ranks differ"

loaded = {pathlib.Path(line.split()[-1]) for line in open("/proc/self/maps") if "libnarrowcast_" in line or "libhwy" in line}
assert {file.name.partition(".")[0] for file in loaded} == {
    "libnarrowcast_classes", "libnarrowcast_ddp", "libnarrowcast_hooks", "libnarrowcast_ops", "libhwy"}, loaded
assert all(file.is_relative_to(sys.prefix) for file in loaded), loaded
torch.distributed.destroy_process_group()
print("ten steps from the wheel")

"""Trains torchvision's ResNet-18 on images of digits in MNIST's files, with torchvision's dataset and transforms. It does not
use narrowcast.

  torchrun --nproc_per_node=2 --standalone digits.py FOLDER
"""
import sys

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, DistributedSampler
from torchvision import datasets, models, transforms

EPOCHS = 2

dist.init_process_group("gloo")
torch.manual_seed(0)
transform = transforms.Compose([transforms.Grayscale(3), transforms.ToTensor(), transforms.Normalize((0.1307,) * 3, (0.3081,) * 3)])
training = datasets.MNIST(sys.argv[1], train=True, transform=transform)
validation = datasets.MNIST(sys.argv[1], train=False, transform=transform)
sampler = DistributedSampler(training)
batches = DataLoader(training, batch_size=16, sampler=sampler)

model = models.resnet18(num_classes=10)
model = DistributedDataParallel(model)
optimizer = torch.optim.SGD(model.parameters(), lr=0.02, momentum=0.9, weight_decay=1e-4)
schedule = torch.optim.lr_scheduler.OneCycleLR(optimizer, max_lr=0.02, total_steps=EPOCHS * len(batches))


@torch.no_grad()
def accuracy(model):
    model.eval()
    images, labels = zip(*validation)
    right = model(torch.stack(images)).argmax(1) == torch.tensor(labels)
    return right.float().mean().item()


for epoch in range(EPOCHS):
    sampler.set_epoch(epoch)
    total = torch.zeros(())
    for images, labels in batches:
        loss = nn.functional.cross_entropy(model(images), labels)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        schedule.step()
        total += loss.detach()
    dist.all_reduce(total)
    mean = total.item() / len(batches) / dist.get_world_size()
    if dist.get_rank() == 0:
        print(f"epoch {epoch}: loss {mean:.4f}", flush=True)
if dist.get_rank() == 0:
    print(f"accuracy {accuracy(model.module):.3f}")
dist.destroy_process_group()

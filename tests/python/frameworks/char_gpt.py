"""Trains a character-level GPT, in the style of nanoGPT: configuration as global variables, a script that runs alone or under
torchrun, gradient accumulation, a cosine schedule, clipping, checkpoints of the unwrapped model. It does not use narrowcast.

  torchrun --nproc_per_node=2 --standalone char_gpt.py --max_iters=1000
"""
import math
import os
import sys
import time

import numpy as np
import torch
from torch import nn
from torch.distributed import destroy_process_group, init_process_group
from torch.nn import functional as F
from torch.nn.parallel import DistributedDataParallel as DDP

data_file = "data/tinyshakespeare.txt"
out_dir = "out"
eval_interval = 20
eval_iters = 4
log_interval = 10
gradient_accumulation_steps = 4
batch_size = 6
block_size = 32
n_layer = 2
n_head = 4
n_embd = 64
learning_rate = 3e-3
min_lr = 3e-4
warmup_iters = 10
max_iters = 40
weight_decay = 1e-1
beta2 = 0.95
grad_clip = 1.0
dtype = "float32"  # Or "float16", with a GradScaler.
for argument in sys.argv[1:]:
    key, value = argument.removeprefix("--").split("=", 1)
    globals()[key] = type(globals()[key])(value)

ddp = int(os.environ.get("RANK", -1)) != -1
if ddp:
    init_process_group(backend="gloo")
    ddp_rank, ddp_world_size = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
    assert gradient_accumulation_steps % ddp_world_size == 0
    gradient_accumulation_steps //= ddp_world_size
else:
    ddp_rank, ddp_world_size = 0, 1
master_process = ddp_rank == 0
torch.manual_seed(1337 + ddp_rank)

with open(data_file) as file:
    text = file.read()
chars = sorted(set(text))
stoi = {char: number for number, char in enumerate(chars)}
tokens = np.array([stoi[char] for char in text], dtype=np.uint16)
splits = {"train": tokens[:int(0.9 * len(tokens))], "val": tokens[int(0.9 * len(tokens)):]}


def get_batch(split):
    data = splits[split]
    starts = torch.randint(len(data) - block_size, (batch_size,))
    x = torch.stack([torch.from_numpy(data[i:i + block_size].astype(np.int64)) for i in starts])
    y = torch.stack([torch.from_numpy(data[i + 1:i + 1 + block_size].astype(np.int64)) for i in starts])
    return x, y


class Block(nn.Module):
    def __init__(self):
        super().__init__()
        self.ln_1, self.ln_2 = nn.LayerNorm(n_embd), nn.LayerNorm(n_embd)
        self.c_attn, self.c_proj = nn.Linear(n_embd, 3 * n_embd), nn.Linear(n_embd, n_embd)
        self.mlp = nn.Sequential(nn.Linear(n_embd, 4 * n_embd), nn.GELU(), nn.Linear(4 * n_embd, n_embd))

    def forward(self, x):
        q, k, v = (each.unflatten(-1, (n_head, -1)).transpose(1, 2) for each in self.c_attn(self.ln_1(x)).split(n_embd, -1))
        y = F.scaled_dot_product_attention(q, k, v, is_causal=True)
        x = x + self.c_proj(y.transpose(1, 2).flatten(-2))
        return x + self.mlp(self.ln_2(x))


class GPT(nn.Module):
    def __init__(self):
        super().__init__()
        self.wte, self.wpe = nn.Embedding(len(chars), n_embd), nn.Embedding(block_size, n_embd)
        self.h = nn.ModuleList(Block() for _ in range(n_layer))
        self.ln_f = nn.LayerNorm(n_embd)
        self.lm_head = nn.Linear(n_embd, len(chars), bias=False)
        self.wte.weight = self.lm_head.weight
        for each in self.parameters():
            if each.dim() > 1:
                nn.init.normal_(each, std=0.02)

    def forward(self, idx, targets):
        x = self.wte(idx) + self.wpe.weight[:idx.shape[1]]
        for block in self.h:
            x = block(x)
        logits = self.lm_head(self.ln_f(x))
        return logits, F.cross_entropy(logits.flatten(0, 1), targets.flatten())

    def configure_optimizers(self):
        decay = [each for each in self.parameters() if each.dim() >= 2]
        no_decay = [each for each in self.parameters() if each.dim() < 2]
        groups = [{"params": decay, "weight_decay": weight_decay}, {"params": no_decay, "weight_decay": 0.0}]
        return torch.optim.AdamW(groups, lr=learning_rate, betas=(0.9, beta2))


@torch.no_grad()
def estimate_loss():
    model.eval()
    out = {split: torch.stack([model(*get_batch(split))[1] for _ in range(eval_iters)]).mean() for split in splits}
    model.train()
    return out


def get_lr(it):
    if it < warmup_iters:
        return learning_rate * (it + 1) / (warmup_iters + 1)
    ratio = (it - warmup_iters) / max(1, max_iters - warmup_iters)
    return min_lr + 0.5 * (1.0 + math.cos(math.pi * ratio)) * (learning_rate - min_lr)


model = GPT()
optimizer = model.configure_optimizers()
scaler = torch.amp.GradScaler("cpu", enabled=dtype == "float16")
ctx = torch.autocast("cpu", dtype=torch.float16, enabled=dtype == "float16")
if ddp:
    model = DDP(model)
raw_model = model.module if ddp else model

X, Y = get_batch("train")
t0 = time.time()
for iter_num in range(max_iters + 1):
    lr = get_lr(iter_num)
    for param_group in optimizer.param_groups:
        param_group["lr"] = lr
    if iter_num % eval_interval == 0 and master_process:
        losses = estimate_loss()
        print(f"step {iter_num}: train loss {losses['train']:.4f}, val loss {losses['val']:.4f}", flush=True)
        if iter_num > 0:
            os.makedirs(out_dir, exist_ok=True)
            checkpoint = {"model": raw_model.state_dict(), "optimizer": optimizer.state_dict(), "iter_num": iter_num}
            torch.save(checkpoint, os.path.join(out_dir, "ckpt.pt"))
    if iter_num == max_iters:
        break
    for micro_step in range(gradient_accumulation_steps):
        if ddp:
            model.require_backward_grad_sync = micro_step == gradient_accumulation_steps - 1
        with ctx:
            logits, loss = model(X, Y)
            loss = loss / gradient_accumulation_steps
        X, Y = get_batch("train")
        scaler.scale(loss).backward()
    scaler.unscale_(optimizer)
    torch.nn.utils.clip_grad_norm_(model.parameters(), grad_clip)
    scaler.step(optimizer)
    scaler.update()
    optimizer.zero_grad(set_to_none=True)
    if iter_num % log_interval == 0 and master_process:
        milliseconds = 1000 * (time.time() - t0) / (iter_num + 1)
        print(f"iter {iter_num}: loss {loss.item() * gradient_accumulation_steps:.4f}, time {milliseconds:.2f}ms", flush=True)

if ddp:
    destroy_process_group()

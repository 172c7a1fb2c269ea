"""Gradients that narrowcast-train averages with hooks, in C++."""
import json
import os
import struct
import subprocess

import torch


def dump_gradients(world_size, folder, *flags):
    """Makes ranks of narrowcast-train write their gradients of the reference task: with the hook of a flag, or with all hooks."""
    subprocess.run([os.environ["NARROWCAST_RUN"], f"--nproc_per_node={world_size}", os.environ["NARROWCAST_TRAIN"],
                    "--model=ddp_comm_hook_task", "--verify_gradients", f"--dump_gradients={folder}", *flags], check=True,
                   capture_output=True)


def read_gradient(folder, hook, rank):
    """The only tensor, float32, of a rank's final gradients."""
    with open(os.path.join(folder, f"{hook}.rank{rank}.safetensors"), "rb") as file:
        header = json.loads(file.read(struct.unpack("<Q", file.read(8))[0]))
        data = bytearray(file.read())
    (entry,) = [value for name, value in header.items() if name != "__metadata__"]
    begin, end = entry["data_offsets"]
    return torch.frombuffer(data[begin:end], dtype=torch.float32).view(entry["shape"])

"""PyTorch's DistributedDataParallel with gradients that are sent in one of narrowcast's wire formats. Copy QuantizedMean and
quantized_mean_hook. The rest is a training to try them with, which predicts the byte that follows 16 others.
  torchrun --nproc_per_node=2 --standalone ddp_from_python.py --library=libnarrowcast_ops.so --data=README.md
"""
import argparse
import datetime
import os
import pathlib
from concurrent.futures import ThreadPoolExecutor

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel

CONTEXT = 16  # Bytes of the model's input.


class QuantizedMean:
    """The state of the hook: a wire format, a group that nothing else uses, and one thread.

    The operator returns when the all-reduce is complete. On the thread of the backward pass it would delay the computation
    of further gradients, so it runs on another thread. There is only one thread because all ranks must make a group's calls
    in the same order: buckets come to the hook in the same order on all ranks, and one thread keeps that order. The group
    is separate because DistributedDataParallel has collectives as well, which could come between other buckets on other
    ranks.
    """

    def __init__(self, wire_format, device, timeout=datetime.timedelta(minutes=5)):
        self._wire_format = wire_format
        self._group = dist.new_group(timeout=timeout)  # Of all ranks. A peer that hangs is an error after the timeout.
        self._stream = torch.cuda.Stream(device) if device.type == "cuda" else None
        self._thread = ThreadPoolExecutor(max_workers=1)
        self._error = None

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self._thread.shutdown()  # Waits until the submitted all-reduces have ended or failed.

    def submit(self, gradients):
        """Returns at once a future of the mean of `gradients`; the mean replaces them."""
        mean = torch.futures.Future(devices=[gradients.device] if self._stream else [])
        computed = torch.cuda.current_stream(gradients.device).record_event() if self._stream else None
        self._thread.submit(self._average, gradients, computed, mean)
        # set_exception() stores the exception as a value. backward() gets only an exception from a callback unchanged.
        return mean.then(lambda done: done.value())  # Called when the mean is there; does not wait.

    def _average(self, gradients, computed, mean):
        try:
            if self._error:  # Ranks may be at different buckets now, so nothing is sent any more.
                raise self._error
            with torch.cuda.stream(self._stream):  # Without a GPU the stream is None, and this does nothing.
                if computed:
                    self._stream.wait_event(computed)
                torch.ops.narrowcast.quantized_all_reduce_(gradients, self._wire_format, self._group.group_name)
                mean.set_result(gradients)  # This is the mean already, and not a sum to divide.
        except Exception as error:
            self._error = error
            mean.set_exception(error)


def quantized_mean_hook(state: QuantizedMean, bucket: dist.GradBucket) -> torch.futures.Future[torch.Tensor]:
    return state.submit(bucket.buffer())


def train(arguments, device):
    text = torch.frombuffer(bytearray(pathlib.Path(arguments.data).read_bytes()), dtype=torch.uint8).long()
    torch.manual_seed(dist.get_rank())  # Each rank draws different bytes. Parameters are rank 0's.
    model = nn.Sequential(nn.Embedding(256, 32), nn.Flatten(), nn.Linear(32 * CONTEXT, 512), nn.ReLU(), nn.Linear(512, 256))
    model = DistributedDataParallel(model.to(device), bucket_cap_mb=arguments.bucket_cap_mb)
    optimizer = torch.optim.AdamW(model.parameters(), lr=3e-3)
    with QuantizedMean(arguments.format, device) as state:
        model.register_comm_hook(state, quantized_mean_hook)
        for step in range(arguments.steps):
            windows = text.unfold(0, CONTEXT + 1, 1)[torch.randint(len(text) - CONTEXT, (64,))].to(device)
            loss = nn.functional.cross_entropy(model(windows[:, :-1]), windows[:, -1])
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            if dist.get_rank() == 0 and (step % 20 == 0 or step + 1 == arguments.steps):
                print(f"step {step + 1}: loss {loss.item():.3f}", flush=True)


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--library", required=True, help="path of libnarrowcast_ops.so")
    parser.add_argument("--data", required=True, help="any file")
    parser.add_argument("--format", default="int8_b128", help="a wire format, as docs/reference/operators.md has them")
    parser.add_argument("--bucket_cap_mb", type=float, default=25)
    parser.add_argument("--steps", type=int, default=200)
    arguments = parser.parse_args()
    torch.ops.load_library(arguments.library)
    device = torch.device("cuda", int(os.environ["LOCAL_RANK"])) if torch.cuda.is_available() else torch.device("cpu")
    if device.type == "cuda":
        torch.cuda.set_device(device)
    dist.init_process_group()  # Gloo for tensors on the CPU and NCCL for those on GPUs.
    train(arguments, device)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()

"""Makes PyTorch's communication hooks that fail on CPU tensors with Gloo run there, as references."""
import contextlib
from unittest import mock

import torch
import torch.distributed as dist
from torch.distributed.algorithms.ddp_comm_hooks import powerSGD_hook, quantization_hooks


class _Completed:
    """A collective that has ended."""

    def __init__(self, value):
        self._future = torch.futures.Future()
        self._future.set_result(value)

    def get_future(self):
        return self._future


def _all_gather(outputs, own, group, async_op):
    """The future has the form of NCCL's, which the hooks expect: one tensor of all ranks, in a list."""
    del async_op
    dist.all_gather(outputs, own, group=group)
    return _Completed([torch.stack(outputs)])


def _all_reduce(tensor, group, async_op):
    """PowerSGD's callbacks wait for all-reduces, on the threads that run them: several buckets can block them all."""
    del async_op
    dist.all_reduce(tensor, group=group)
    return _Completed([tensor])


_orthogonalize = powerSGD_hook._orthogonalize


def _orthogonalize_any(matrices, epsilon=0):
    """batched_powerSGD_hook passes a matrix, but PyTorch's function takes only batches of matrices."""
    _orthogonalize(matrices if matrices.dim() == 3 else matrices.unsqueeze(0), epsilon)


@contextlib.contextmanager
def running_on_gloo():
    """The hooks of these modules work within the block."""
    with mock.patch.object(quantization_hooks, "dist", mock.Mock(wraps=dist, all_gather=_all_gather, group=dist.group)), \
            mock.patch.object(powerSGD_hook, "dist", mock.Mock(wraps=dist, all_reduce=_all_reduce, group=dist.group)), \
            mock.patch.object(powerSGD_hook, "_orthogonalize", _orthogonalize_any):
        yield

"""The PowerSGD hooks, with the memory of means, equal PyTorch's own on two ranks, and approximately on more."""
import ctypes
import itertools
import json
import logging
import os
import subprocess
import sys
import tempfile
import types
import unittest
from unittest import mock

import torch
import torch.distributed as dist
from torch.distributed.algorithms.ddp_comm_hooks import powerSGD_hook as upstream

from support.ranks import run_on_ranks

STEPS = 8
START = 2
# Two buckets: matrices, two of which have the same shape, a convolution's weight, a bias, and one too small to
# compress.
BUCKETS = [[(1024, 64), (64, 1024), (7,), (64, 1024)], [(16, 8, 3, 3), (16,), (1, 5)]]
USUAL = {"hook": "power_sgd", "matrix_approximation_rank": 1, "start_powerSGD_iter": START, "min_compression_rate": 2,
         "use_error_feedback": True, "warm_start": True, "orthogonalization_epsilon": 0, "random_seed": 0,
         "batch_tensors_with_same_shape": False, "memory": "averaged", "world_size": 2, "steps": STEPS,
         "dtype": "float32", "buckets": BUCKETS}
OF_PYTORCH = ("matrix_approximation_rank", "start_powerSGD_iter", "min_compression_rate", "use_error_feedback",
              "warm_start", "orthogonalization_epsilon", "random_seed", "batch_tensors_with_same_shape")


class RandomState:
    """The part of numpy.random.RandomState that the hook uses; otherwise the tests do not need NumPy."""

    def __init__(self, seed):
        self._numbers = [seed]
        for i in range(1, 624):
            last = self._numbers[-1]
            self._numbers.append((1812433253 * (last ^ (last >> 30)) + i) & 0xFFFFFFFF)
        self._next = 624

    def _twist(self):
        numbers = self._numbers
        for i in range(624):
            mixed = (numbers[i] & 0x80000000) | (numbers[(i + 1) % 624] & 0x7FFFFFFF)
            numbers[i] = numbers[(i + 397) % 624] ^ (mixed >> 1) ^ (0x9908B0DF if mixed & 1 else 0)
        self._next = 0

    def randint(self, end):
        while True:
            if self._next == 624:
                self._twist()
            number = self._numbers[self._next]
            self._next += 1
            number ^= number >> 11
            number ^= (number << 7) & 0x9D2C5680
            number ^= (number << 15) & 0xEFC60000
            number ^= number >> 18
            number &= (1 << (end - 1).bit_length()) - 1
            if number < end:
                return number


class Bucket:
    """The part of dist.GradBucket that the hooks use; Python cannot construct one."""

    def __init__(self, buffer, shapes, index, count):
        self._buffer, self._shapes, self._index, self._count = buffer, shapes, index, count

    def buffer(self):
        return self._buffer

    def set_buffer(self, buffer):
        self._buffer = buffer

    def gradients(self):
        parts = self._buffer.split([torch.Size(shape).numel() for shape in self._shapes])
        return [part.view(shape) for part, shape in zip(parts, self._shapes)]

    def index(self):
        return self._index

    def is_last(self):
        return self._index + 1 == self._count


def orthogonalize_batches_of_one(matrices, epsilon=0, inner=upstream._orthogonalize):
    """The batched hook passes a matrix to a function that expects a batch: treats it as a batch of one."""
    inner(matrices.unsqueeze(0) if matrices.dim() == 2 else matrices, epsilon)


def make_state(case):
    with mock.patch.dict(sys.modules, numpy=types.SimpleNamespace(random=types.SimpleNamespace(RandomState=RandomState))):
        return upstream.PowerSGDState(None, **{name: case[name] for name in OF_PYTORCH})


def upstream_means(case, gradients):
    """This rank's results, by step and bucket. Buckets come one at a time, because the hook waits within callbacks."""
    state = make_state(case)
    hook = upstream.batched_powerSGD_hook if case["hook"].startswith("batched") else upstream.powerSGD_hook
    means = []
    with mock.patch.object(upstream, "_orthogonalize", orthogonalize_batches_of_one):
        for step in gradients:
            means.append([])
            for index, buffer in enumerate(step):
                bucket = Bucket(buffer.clone(), case["buckets"][index], index, len(step))
                means[-1].append(hook(state, bucket).wait().clone())
    return means


def numels(case):
    return [sum(torch.Size(shape).numel() for shape in bucket) for bucket in case["buckets"]]


def make_gradients(case):
    """Gradients by rank, step and bucket."""
    torch.manual_seed(1)
    dtype = getattr(torch, case["dtype"])
    return [[[torch.randn(numel, dtype=dtype) * 1e-3 for numel in numels(case)] for _ in range(case["steps"])]
            for _ in range(case["world_size"])]


def write_case(case, gradients, folder):
    os.mkdir(folder)
    with open(os.path.join(folder, "case.json"), "w", encoding="utf-8") as file:
        json.dump(case, file)
    with open(os.path.join(folder, "gradients.bin"), "wb") as file:
        for step in range(case["steps"]):
            for of_rank in gradients:
                for numbers in of_rank[step]:
                    file.write(ctypes.string_at(numbers.data_ptr(), numbers.nbytes))


def read_means(case, folder):
    """Means by rank, step and bucket."""
    with open(os.path.join(folder, "means.bin"), "rb") as file:
        numbers = torch.frombuffer(bytearray(file.read()), dtype=getattr(torch, case["dtype"]))
    parts = iter(numbers.split(numels(case) * case["steps"] * case["world_size"]))
    means = [[] for _ in range(case["world_size"])]
    for _ in range(case["steps"]):
        for of_rank in means:
            of_rank.append([next(parts) for _ in case["buckets"]])
    return means


def cases(**changes):
    return [dict(USUAL, **dict(zip(changes, values))) for values in itertools.product(*changes.values())]


class OnEachRank(unittest.TestCase):
    """The test on one rank; not a test by itself."""

    def __init__(self, all_cases, folder=None, relative=None):
        super().__init__()
        self.all_cases, self.folder, self.relative = all_cases, folder, relative

    def runTest(self):
        torch.set_num_threads(1)
        logging.disable()
        for i, case in enumerate(self.all_cases):
            gradients = make_gradients(case)
            ours = read_means(case, os.path.join(self.folder, str(i)))
            theirs = upstream_means(case, gradients[dist.get_rank()])
            with self.subTest(**{name: value for name, value in case.items() if value != USUAL[name]}):
                for step in range(case["steps"]):
                    for bucket, mean in enumerate(theirs[step]):
                        self.compare(ours[dist.get_rank()][step][bucket], mean, f"step {step}, bucket {bucket}")

    def compare(self, ours, theirs, where):
        if self.relative is None:
            self.assertTrue(torch.equal(ours, theirs), where)
        else:
            self.assertLessEqual((ours - theirs).norm(), self.relative * theirs.norm(), where)


class PowerSgd(unittest.TestCase):
    def check(self, world_size, all_cases, relative=None):
        with tempfile.TemporaryDirectory() as folder:
            folders = [os.path.join(folder, str(i)) for i in range(len(all_cases))]
            for case, of_case in zip(all_cases, folders):
                write_case(case, make_gradients(case), of_case)
            subprocess.run([os.environ["NARROWCAST_POWER_SGD_STEPS"], *folders], check=True)
            self.assertEqual(run_on_ranks(world_size, OnEachRank(all_cases, folder, relative)), [0] * world_size)

    def test_bits_on_two_ranks(self):
        self.check(2, cases(matrix_approximation_rank=[1, 2, 4], use_error_feedback=[True, False],
                            warm_start=[True, False], batch_tensors_with_same_shape=[True, False])
                   + cases(dtype=["float64"], matrix_approximation_rank=[1, 2, 4])
                   + cases(orthogonalization_epsilon=[1e-8], matrix_approximation_rank=[2], random_seed=[7])
                   + cases(hook=["batched_power_sgd"], matrix_approximation_rank=[1, 2, 4], dtype=["float32", "float64"]))

    def test_more_ranks_but_for_rounding(self):
        for world_size in (3, 4):
            usual = {"world_size": [world_size], "steps": [START + 3]}
            self.check(world_size, cases(**usual, matrix_approximation_rank=[1, 2, 4],
                                         hook=["power_sgd", "batched_power_sgd"])
                       + cases(**usual, matrix_approximation_rank=[2, 4], use_error_feedback=[True, False],
                               warm_start=[False], batch_tensors_with_same_shape=[True]), relative=1e-5)
            self.check(world_size, cases(**usual, matrix_approximation_rank=[1, 2, 4], dtype=["float64"]), relative=1e-13)


def load_tests(loader, _tests, _pattern):
    return loader.loadTestsFromTestCase(PowerSgd)


if __name__ == "__main__":
    unittest.main()

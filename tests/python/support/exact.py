"""Shared parts of the tests in Python: the loaded library, exact comparison, numbers to try."""
import os
import unittest

import torch

torch.ops.load_library(os.environ["NARROWCAST_OPS_LIBRARY"])

ops = torch.ops.narrowcast
FLOATS = (torch.float32, torch.float64, torch.bfloat16, torch.float16)
_INTEGER_OF_SIZE = {1: torch.int8, 2: torch.int16, 4: torch.int32, 8: torch.int64}


def registered_operators():
    prefix = "narrowcast::"
    return {name[len(prefix):] for name in torch._C._dispatch_get_all_op_names() if name.startswith(prefix)}


def bits(tensor):
    """The bits of each element as an integer."""
    return tensor.contiguous().view(_INTEGER_OF_SIZE[tensor.element_size()])


def random_bits(dtype, count, generator=None):
    """`count` random bit patterns of a floating-point type, including Inf and NaN."""
    size = torch.empty((), dtype=dtype).element_size()
    halves = torch.randint(-2**15, 2**15, (count * size // 2,), dtype=torch.int16, generator=generator)
    return halves.view(dtype)


def every_pattern(dtype):
    """All bit patterns of a 16-bit floating-point type."""
    return torch.arange(-2**15, 2**15, dtype=torch.int32).to(torch.int16).view(dtype)


def hostile_numbers(dtype):
    """Numbers at which arithmetic changes its behaviour: zeros, ties, subnormals, limits. All are finite."""
    limits = torch.finfo(dtype)
    positive = [0.0, 0.5, 1.0, 1.5, 2.5, 254.5, 255.0, limits.tiny, limits.smallest_normal / 2, limits.eps, limits.max,
                2.0**-23, 2.0**-24, 2.0**-23 * 255 / 2, 65504.0, 65519.0, 65520.0]
    numbers = torch.tensor(positive, dtype=torch.float64).clamp(max=limits.max).to(dtype)
    return torch.cat([numbers, -numbers])


class ExactTestCase(unittest.TestCase):
    def assert_same(self, actual, expected):
        """Equal bits, except that any NaN equals any other. Compares tensors, and lists and tuples of them."""
        if not isinstance(expected, torch.Tensor):
            self.assertEqual(type(actual), type(expected))
            if isinstance(expected, (list, tuple)):
                self.assertEqual(len(actual), len(expected))
                for pair in zip(actual, expected):
                    self.assert_same(*pair)
            else:
                self.assertEqual(actual, expected)
            return
        self.assertEqual((actual.dtype, actual.shape), (expected.dtype, expected.shape))
        actual, expected = actual.detach(), expected.detach()
        wrong = bits(actual) != bits(expected)
        if expected.is_floating_point():
            wrong &= ~(actual.isnan() & expected.isnan())
        if wrong.any():
            first = wrong.nonzero()[0].tolist()
            self.fail(f"{wrong.sum()} of {wrong.numel()} elements differ; first, at {first}: "
                      f"{actual[tuple(first)].item()!r} instead of {expected[tuple(first)].item()!r}")

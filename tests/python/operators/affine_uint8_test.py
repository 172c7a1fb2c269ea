"""Affine uint8 equals PyTorch's observers and the backend functions of its quantization_hooks.py, bit for bit."""
import unittest
import warnings

import torch
from torch.ao.quantization import MinMaxObserver, PerChannelMinMaxObserver
from torch.distributed.algorithms.ddp_comm_hooks import quantization_hooks as upstream

from support.exact import FLOATS, ExactTestCase, hostile_numbers, ops, random_bits

warnings.filterwarnings("ignore", category=UserWarning, module="torch.ao.quantization")
warnings.filterwarnings("ignore", message="torch.ao.quantization is deprecated")
SEED = 5
INF = float("inf")


def observed(observer, x):
    observer(x)
    scale, zero_point = observer.calculate_qparams()
    return scale, zero_point.to(torch.int32)


def matrices(dtype):
    """Names and matrices to try."""
    torch.manual_seed(SEED)
    for shape in ((1, 1), (3, 7), (16, 512), (5, 1023)):
        normal = torch.randn(shape, dtype=torch.float64)
        for exponent in (-45, -30, -23, -14, -4, 0, 9, 30, 120):
            yield f"randn{shape} * 2^{exponent}", (normal * 2.0**exponent).clamp(
                -torch.finfo(dtype).max / 4, torch.finfo(dtype).max / 4).to(dtype)
        yield f"positive {shape}", normal.abs().to(dtype)
        yield f"negative {shape}", -normal.abs().to(dtype)
    yield "random bits", random_bits(dtype, 4096).view(64, 64)
    yield "random finite bits", random_bits(dtype, 4096).view(64, 64).nan_to_num(nan=0.0, posinf=0.0, neginf=0.0)
    yield "hostile rows", hostile_numbers(dtype).repeat(3, 1)
    yield "hostile columns", hostile_numbers(dtype).unsqueeze(1)
    yield "strided", torch.randn(40, 60).to(dtype).t()[::2, 1:]
    yield "zeros", torch.zeros(4, 9, dtype=dtype)
    yield "positive infinity", torch.tensor([[1.0, INF], [0.0, 2.0]], dtype=dtype)
    yield "NaN", torch.tensor([[1.0, float("nan")], [0.0, 2.0], [INF, float("nan")]], dtype=dtype)
    yield "negative infinity", torch.tensor([[1.0, -INF], [-3.0, 2.0]], dtype=dtype)


class ChooseQparams(ExactTestCase):
    def test_per_tensor_as_the_observer(self):
        for dtype in FLOATS:
            for name, x in matrices(dtype):
                with self.subTest(dtype=dtype, input=name):
                    self.assert_same(ops.choose_qparams_per_tensor(x), observed(MinMaxObserver(), x))

    def test_per_channel_as_the_observer(self):
        for dtype in FLOATS:
            for name, x in matrices(dtype):
                with self.subTest(dtype=dtype, input=name):
                    self.assert_same(ops.choose_qparams_per_channel(x), observed(PerChannelMinMaxObserver(), x))

    def test_more_dimensions_and_fewer(self):
        for shape in ((4, 3, 2, 5), (9,)):
            x = torch.randn(shape)
            self.assert_same(ops.choose_qparams_per_tensor(x), observed(MinMaxObserver(), x))
        self.assert_same(ops.choose_qparams_per_channel(torch.ones(4, 3, 2)),
                         observed(PerChannelMinMaxObserver(), torch.ones(4, 3, 2)))

    def test_empty_as_the_observer(self):
        self.assert_same(ops.choose_qparams_per_tensor(torch.empty(0)), observed(MinMaxObserver(), torch.empty(0)))


class Quantize(ExactTestCase):
    def test_per_tensor_as_the_hook(self):
        for dtype in FLOATS:
            for name, x in matrices(dtype):
                with self.subTest(dtype=dtype, input=name):
                    scale, zero_point = ops.choose_qparams_per_tensor(x)
                    expected = upstream._quantize_per_tensor_backend(x, scale[0], zero_point[0].float())
                    self.assert_same(ops.quantize_per_tensor(x, scale, zero_point), expected)

    def test_per_channel_as_the_hook(self):
        for dtype in FLOATS:
            for name, x in matrices(dtype):
                with self.subTest(dtype=dtype, input=name):
                    scales, zero_points = ops.choose_qparams_per_channel(x)
                    expected = upstream._quantize_per_channel_backend(x, scales, zero_points.float())
                    self.assert_same(ops.quantize_per_channel(x, scales, zero_points), expected)

    # PyTorch's conversion of NaN to uint8 is undefined.
    def test_nan_is_code_zero(self):
        for dtype in FLOATS:
            x = torch.full((1, 40), float("nan"), dtype=dtype)
            self.assert_same(ops.quantize_per_tensor(x, torch.tensor(1.0), torch.tensor(7.0)), torch.zeros_like(x).byte())

    # Scales that do not belong to the input: every kind of saturation, and all ties.
    def test_foreign_scales_as_the_hook(self):
        halves = torch.arange(-600, 601) / 2
        for dtype in FLOATS:
            for scale in (1.0, 0.5, 3.0, 2.0**-23, 1e-30, 1e30, 0.1):
                for zero_point in (0.0, 1.0, 127.0, 255.0):
                    with self.subTest(dtype=dtype, scale=scale, zero_point=zero_point):
                        qparams = torch.tensor([scale, zero_point])
                        x = torch.cat([(halves * scale).to(dtype), hostile_numbers(dtype)])
                        expected = upstream._quantize_per_tensor_backend(x, *qparams)
                        self.assert_same(ops.quantize_per_tensor(x, *qparams), expected)


class Dequantize(ExactTestCase):
    def setUp(self):
        torch.manual_seed(SEED)
        self.codes = torch.arange(256, dtype=torch.uint8)
        self.scales = torch.cat([random_bits(torch.float32, 200).abs(), torch.tensor([INF, 0.0, 1.0])])
        self.zero_points = torch.randint(0, 256, self.scales.shape, dtype=torch.int32)

    def test_per_tensor_as_the_hook(self):
        for scale, zero_point in zip(self.scales, self.zero_points):
            expected = upstream._dequantize_per_tensor_backend(self.codes, scale, zero_point.float())
            self.assert_same(ops.dequantize_per_tensor(self.codes, scale, zero_point), expected)

    def test_per_channel_as_the_hook(self):
        codes = self.codes.expand(len(self.scales), 256)
        expected = upstream._dequantize_per_channel_backend(codes, self.scales, self.zero_points.float())
        self.assert_same(ops.dequantize_per_channel(codes, self.scales, self.zero_points), expected)


if __name__ == "__main__":
    unittest.main()

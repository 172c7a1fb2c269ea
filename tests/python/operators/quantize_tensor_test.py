"""FP16 and BFP16 equal PyTorch's own torch/distributed/algorithms/_quantization, bit for bit, except for NaN."""
import unittest

import torch
from torch.distributed.algorithms._quantization import quantization as upstream

from support.exact import FLOATS, ExactTestCase, bits, every_pattern, hostile_numbers, ops, random_bits

UPSTREAM_TYPE = {"fp16": upstream.DQuantType.FP16, "bfp16": upstream.DQuantType.BFP16}
QUIET_NAN = {"fp16": 0x7E00, "bfp16": 0x7FC0}
QUANT_LOSS = 1.1


def upstream_quantize(x, qtype):
    """PyTorch's function; its BFP16 only accepts contiguous float32 matrices."""
    if qtype == "bfp16":
        x = x.float().reshape(1, -1)
    return upstream._quantize_tensor(x, UPSTREAM_TYPE[qtype])


def upstream_dequantize(q, qtype):
    return upstream._dequantize_tensor(q.reshape(1, -1), UPSTREAM_TYPE[qtype]).view(q.shape)


class QuantizeTensor(ExactTestCase):
    def assert_encodes_as_upstream(self, x):
        nan = x.isnan()
        for qtype in UPSTREAM_TYPE:
            with self.subTest(dtype=x.dtype, qtype=qtype):
                codes = bits(ops.quantize_tensor(x, qtype))
                expected = bits(upstream_quantize(x, qtype)).view(x.shape)
                self.assert_same(codes[~nan], expected[~nan])
                self.assertTrue(((codes[nan] & QUIET_NAN[qtype]) == QUIET_NAN[qtype]).all(), "a NaN was lost")

    def test_every_binary16_and_bfloat16(self):
        for dtype in (torch.float16, torch.bfloat16):
            self.assert_encodes_as_upstream(every_pattern(dtype))

    def test_every_binary16_and_bfloat16_as_float32(self):
        for dtype in (torch.float16, torch.bfloat16):
            self.assert_encodes_as_upstream(every_pattern(dtype).float())

    def test_ten_million_random_float32_patterns(self):
        torch.manual_seed(1)
        self.assert_encodes_as_upstream(random_bits(torch.float32, 10_000_000))

    # The lower half of a float32 decides how BFP16 rounds: tries all lower halves with some upper halves.
    def test_every_way_to_round_to_bfp16(self):
        lower = torch.arange(2**16, dtype=torch.int32)
        for upper in (0x0000, 0x007F, 0x3F80, 0x3F81, 0x477F, 0x7F7F, 0x8000, 0xC77F, 0xFF7F):
            signed = upper - 2**16 if upper >= 2**15 else upper
            self.assert_encodes_as_upstream((signed * 2**16 + lower).view(torch.float32))

    def test_float64(self):
        torch.manual_seed(2)
        self.assert_encodes_as_upstream(random_bits(torch.float64, 100_000))
        self.assert_encodes_as_upstream(torch.randn(100_000, dtype=torch.float64) * 1e4)

    def test_limits_and_ties(self):
        for dtype in FLOATS:
            self.assert_encodes_as_upstream(hostile_numbers(dtype))

    # PyTorch's BFP16 misreads, or rejects, tensors other than contiguous matrices.
    def test_any_layout(self):
        base = torch.randn(6, 8, 10)
        for x in (base.transpose(0, 2), base[::2, 1:, 3], base[0, 0, 0], base[:, :1].expand(6, 4, 10)):
            for qtype in UPSTREAM_TYPE:
                expected = upstream_quantize(x.contiguous(), qtype).view(x.shape)
                self.assert_same(bits(ops.quantize_tensor(x, qtype)), bits(expected))


class DequantizeTensor(ExactTestCase):
    def test_every_code(self):
        codes = every_pattern(torch.float16)
        for qtype in UPSTREAM_TYPE:
            decoded = upstream_dequantize(codes, qtype)
            self.assert_same(ops.dequantize_tensor(codes, qtype), decoded)
            self.assert_same(ops.dequantize_tensor(codes, qtype, QUANT_LOSS), decoded / QUANT_LOSS)

    def test_fp16_divides_by_quant_loss_as_upstream(self):
        codes = every_pattern(torch.float16)
        expected = upstream._dequantize_tensor(codes, upstream.DQuantType.FP16, quant_loss=QUANT_LOSS)
        self.assert_same(ops.dequantize_tensor(codes, "fp16", QUANT_LOSS), expected)


class Lists(ExactTestCase):
    def test_each_tensor_as_upstream(self):
        xs = [torch.randn(3, 4), torch.randn(1, 5), torch.empty(0, 2)]
        for qtype, upstream_type in UPSTREAM_TYPE.items():
            expected = upstream._quantize_tensor_list(xs, upstream_type)
            qs = ops.quantize_tensor_list(xs, qtype)
            self.assert_same([bits(q) for q in qs], [bits(q) for q in expected])
            decoded = upstream._dequantize_tensor_list(expected, upstream_type)
            self.assert_same(ops.dequantize_tensor_list(qs, qtype), decoded)
            # Upstream ignores quant_loss here.
            self.assert_same(ops.dequantize_tensor_list(qs, qtype, QUANT_LOSS), [x / QUANT_LOSS for x in decoded])


if __name__ == "__main__":
    unittest.main()

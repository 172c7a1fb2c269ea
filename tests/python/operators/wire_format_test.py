"""The block and float formats of docs/reference/wire-format.md, implemented literally with Python's numbers, give the
operators' bytes and values."""
import math
import struct
import unittest
from fractions import Fraction

import torch

from support.exact import ExactTestCase, ops
from support.wire_numbers import NAN_SCALE, bits_of, float32, float_of, inputs, random_word

BLOCK_FORMATS = {"int8_b32": (8, 32, 127), "int8_b128": (8, 128, 127), "int8_b256": (8, 256, 127),
                 "int6_b32": (6, 32, 31), "int4_b32": (4, 32, 7), "fp8_e4m3_b32": (8, 32, 448)}
FLOAT_FORMATS = {"bf16": 2, "fp16": 2, "fp32": 4}
LEAST_SCALE = Fraction(1, 2**100)


def least_scale(magnitude, greatest):
    """The bits of the smallest bfloat16 that covers the magnitude, by search."""
    low, high = 0, 0x7F7F
    while low < high:
        middle = (low + high) // 2
        if Fraction(float_of(middle << 16)) * greatest >= Fraction(magnitude):
            high = middle
        else:
            low = middle + 1
    return low if Fraction(float_of(low << 16)) >= LEAST_SCALE else 0


def integer_code(y, bits, greatest, word):
    if word is None:
        return round(y) % 2**bits  # Python rounds half to even.
    fixed = math.trunc(max(-greatest, min(greatest, y)) * 2**24)
    return (fixed + (word >> 8)) // 2**24 % 2**bits


E4M3 = [Fraction(code, 512) if code < 8 else Fraction(8 + code % 8) * Fraction(2)**(code // 8 - 10) for code in range(127)]


def e4m3_code(y, word):
    sign = 0x80 if math.copysign(1, y) < 0 else 0
    magnitude = Fraction(min(abs(y), 448.0))
    if word is None:  # If two are equally near, the one with the even code.
        return sign | min(range(127), key=lambda code: (abs(E4M3[code] - magnitude), code % 2))
    small = magnitude < Fraction(1, 64)
    fixed = math.trunc(magnitude * 2**29) if small else bits_of(float(magnitude)) - 0x3C000000
    return sign | (fixed + (word >> 12)) >> 20


def encode_block(x, bits, greatest, words):
    if not all(map(math.isfinite, x)):
        return struct.pack("<H", NAN_SCALE) + bytes((len(x) * bits + 7) // 8)
    scale = least_scale(max(map(abs, x)), greatest)
    inverse = float32(1 / float_of(scale << 16)) if scale else 0.0
    number = 0
    for i, (value, word) in enumerate(zip(x, words)):
        y = float32(value * inverse)  # The product of two float32 is exact in a double.
        code = e4m3_code(y, word) if greatest == 448 else integer_code(y, bits, greatest, word)
        number |= code << (i * bits)
    return struct.pack("<H", scale) + number.to_bytes((len(x) * bits + 7) // 8, "little")


def encode(x, name, seed=None, step=0, offset=0):
    bits, block, greatest = BLOCK_FORMATS[name]
    words = [None if seed is None else random_word(seed % 2**64, step, offset + i) for i in range(len(x))]
    return b"".join(encode_block(x[i:i + block], bits, greatest, words[i:i + block]) for i in range(0, len(x), block))


def decode_code(code, bits, greatest):
    if greatest != 448:
        return code - 2**bits if code >= 2**(bits - 1) else code
    value = float(E4M3[code & 0x7F]) if code & 0x7F != 0x7F else math.nan
    return math.copysign(value, -1 if code & 0x80 else 1)


def decode(message, name, numel):
    bits, block, greatest = BLOCK_FORMATS[name]
    values = []
    for begin in range(0, numel, block):
        n = min(block, numel - begin)
        size = (n * bits + 7) // 8
        scale = float_of(struct.unpack("<H", message[:2])[0] << 16)
        number, message = int.from_bytes(message[2:2 + size], "little"), message[2 + size:]
        values += [scale * decode_code(number >> (i * bits) & (2**bits - 1), bits, greatest) for i in range(n)]
    return values


class BlockFormats(ExactTestCase):
    def for_each_input(self, check):
        for name in BLOCK_FORMATS:
            for x in inputs():
                with self.subTest(format=name, size=x.numel()):
                    check(name, x)

    def test_nearest(self):
        self.for_each_input(lambda name, x: self.assertEqual(
            bytes(ops.encode(x, name).tolist()), encode(x.tolist(), name)))

    def test_stochastic(self):
        random = {"seed": -3, "step": 2**33 + 5, "offset": 2**34 + 7}
        self.for_each_input(lambda name, x: self.assertEqual(
            bytes(ops.encode(x, name, **random).tolist()), encode(x.tolist(), name, **random)))

    def test_decoded(self):
        def check(name, x):
            message = ops.encode(x, name)
            expected = torch.tensor(decode(bytes(message.tolist()), name, x.numel()), dtype=torch.float64).float()
            self.assert_same(ops.decode(message, name, x.numel()), expected)
        self.for_each_input(check)

    def test_sizes(self):
        for name, (bits, block, _) in BLOCK_FORMATS.items():
            for numel in (0, 1, 31, 32, 33, 1000003):
                self.assertEqual(ops.encoded_size(numel, name), 2 * -(-numel // block) + -(-numel * bits // 8))


class FloatFormats(ExactTestCase):
    DTYPES = {"bf16": torch.bfloat16, "fp16": torch.float16, "fp32": torch.float32}

    def test_are_pytorch_types(self):
        for name, dtype in self.DTYPES.items():
            for x in inputs():
                message = ops.encode(x, name)
                self.assertEqual(message.numel(), FLOAT_FORMATS[name] * x.numel())
                self.assert_same(message.view(dtype), x.to(dtype))
                self.assert_same(ops.decode(message, name, x.numel()), x.to(dtype).float())


if __name__ == "__main__":
    unittest.main()

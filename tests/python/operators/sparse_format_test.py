"""The sparse formats of docs/reference/wire-format.md, implemented literally with Python's numbers, give the operators'
bytes and values."""
import math
import struct
import unittest

import torch

from support.exact import ExactTestCase, ops
from support.wire_numbers import NAN_SCALE, bits_of, float_of, inputs

SPARSE_FORMATS = {"top2_15": (15, 6), "top2_31": (31, 5)}  # per mille, low bits of a place
BLOCK = 4096
LEAST_LEVEL, GREATEST_LEVEL = bits_of(2.0**-100) >> 16, 0x7F7F


class Layout:
    """The numbers of bits of a block of n elements."""

    def __init__(self, name, n):
        per_mille, self.low = SPARSE_FORMATS[name]
        self.n = n
        self.kept = max(1, n * per_mille // 1000)
        self.upper = self.kept + (n - 1) // 2**self.low
        self.codes = self.upper + self.kept * self.low
        self.bytes = 4 + -(-(self.codes + 2 * self.kept) // 8)


def layouts(name, numel):
    return [Layout(name, min(BLOCK, numel - begin)) for begin in range(0, numel, BLOCK)]


def level_of(magnitudes):
    bits = bits_of(sum(magnitudes) / len(magnitudes))
    level = (bits + 0x7FFF + (bits >> 16 & 1)) >> 16
    return min(level, GREATEST_LEVEL) if level >= LEAST_LEVEL else 0


def encode_block(x, layout):
    rest = layout.bytes - 4
    if not all(map(math.isfinite, x)):
        return struct.pack("<HH", NAN_SCALE, NAN_SCALE) + bytes(rest)
    places = sorted(sorted(range(layout.n), key=lambda i: (-abs(x[i]), i))[:layout.kept])
    kept = [abs(x[place]) for place in places]
    mean = sum(kept) / len(kept)
    small = level_of([m for m in kept if m <= mean])
    above = [m for m in kept if m > mean]
    large = level_of(above) if above else small
    if small == large == 0:
        return bytes(layout.bytes)
    bits = 0
    for i, place in enumerate(places):
        code = bits_of(x[place]) >> 31 | (abs(x[place]) > mean) << 1
        bits |= 1 << (place // 2**layout.low + i)
        bits |= place % 2**layout.low << (layout.upper + i * layout.low)
        bits |= code << (layout.codes + 2 * i)
    return struct.pack("<HH", small, large) + bits.to_bytes(rest, "little")


def encode_sparse(x, name):
    blocks = layouts(name, len(x))
    return b"".join(encode_block(x[i * BLOCK:(i + 1) * BLOCK], layout) for i, layout in enumerate(blocks))


def decode_block(message, layout):
    levels = struct.unpack("<HH", message[:4])
    bits = int.from_bytes(message[4:], "little")
    nan = [math.nan] * layout.n
    if levels == (0, 0):
        return [0.0] * layout.n
    upper = [i for i in range(layout.upper) if bits >> i & 1]
    if math.isnan(float_of(levels[0] << 16)) or len(upper) != layout.kept:
        return nan
    low = [bits >> (layout.upper + i * layout.low) & (2**layout.low - 1) for i in range(layout.kept)]
    places = [(one - i) * 2**layout.low + low[i] for i, one in enumerate(upper)]
    if places != sorted(set(places)) or places[-1] >= layout.n:
        return nan
    x = [0.0] * layout.n
    for i, place in enumerate(places):
        code = bits >> (layout.codes + 2 * i) & 3
        level = float_of(levels[code >> 1] << 16)
        x[place] = (-level if code & 1 else level) if levels[code >> 1] else 0.0
    return x


def decode_sparse(message, name, numel):
    values = []
    for layout in layouts(name, numel):
        values += decode_block(message[:layout.bytes], layout)
        message = message[layout.bytes:]
    return values


def sparse_inputs():
    generator = torch.Generator().manual_seed(8)
    yield from inputs()
    for size in (4095, 4096, 4097, 9000):
        yield torch.randn(size, generator=generator)
    yield torch.randint(-3, 4, (5000,), generator=generator).float()  # Many equal magnitudes.
    yield torch.full((4096,), -(2.0 - 2.0**-23) * 2.0**127)
    yield torch.randn(9000, generator=generator).index_fill(0, torch.tensor([5000]), math.nan)


class SparseFormats(ExactTestCase):
    def for_each_input(self, check):
        for name in SPARSE_FORMATS:
            for x in sparse_inputs():
                with self.subTest(format=name, size=x.numel()):
                    check(name, x)

    def test_bytes(self):
        for random in ({}, {"seed": -3, "step": 5, "offset": 7}):
            self.for_each_input(lambda name, x: self.assertEqual(
                bytes(ops.encode(x, name, **random).tolist()), encode_sparse(x.tolist(), name)))

    def assert_decodes(self, message, name, numel):
        expected = torch.tensor(decode_sparse(bytes(message.tolist()), name, numel), dtype=torch.float64).float()
        self.assert_same(ops.decode(message, name, numel), expected)

    def test_decoded(self):
        self.for_each_input(lambda name, x: self.assert_decodes(ops.encode(x, name), name, x.numel()))

    def test_any_bytes_are_decoded(self):
        generator = torch.Generator().manual_seed(4)
        for name in SPARSE_FORMATS:
            for numel in (1, 70, 1000, 4096, 5000):
                for changes in range(12):
                    message = ops.encode(torch.randn(numel, generator=generator), name)
                    for place in torch.randint(0, message.numel(), (changes // 2,), generator=generator).tolist():
                        message[place] = int(torch.randint(0, 256, (), generator=generator))
                    self.assert_decodes(message, name, numel)

    def test_sizes(self):
        for name in SPARSE_FORMATS:
            for numel in (0, 1, 31, 65, 4095, 4096, 4097, 1000003):
                self.assertEqual(ops.encoded_size(numel, name), sum(layout.bytes for layout in layouts(name, numel)))


if __name__ == "__main__":
    unittest.main()

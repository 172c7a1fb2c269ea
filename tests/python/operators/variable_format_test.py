"""The variable formats of docs/reference/wire-format.md, implemented literally with Python's numbers, give the operators'
bytes and values."""
import functools
import itertools
import math
import struct
import unittest

import torch

from support.exact import ExactTestCase, ops
from support.wire_numbers import NAN_SCALE, bits_of, float32, float_of, inputs, random_word

VARIABLE_FORMATS = {"var6": 6, "var5": 5, "var4": 4, "var3": 3}
GREATEST_STEP = 0x7F7F
GREATEST_MAGNITUDE = 253 * 2.0**120


def parts_of(values, size):
    return [values[i:i + size] for i in range(0, len(values), size)]


def variable_size(numel, bits):
    return max(4 * bits * -(-numel // 32), 36) if numel else 0


LEAST_FAINT = bits_of(2.0**-101)
ZERO_POINT_WIDTHS = range(3, 8)


def width_of(header):
    """A block's width, from its header."""
    if header >= 64:
        return header // 32 + 1
    return 2 if header >= 8 else 8 + header if header else 0


def zero_point_of(header):
    width = width_of(header)
    return 2**(width - 3) if header >= 64 and header & 2 and width in ZERO_POINT_WIDTHS else 0


def own_step(step, header):
    """A block's own step, from the message's 16 bits and the block's header."""
    distance = header // 4 % 8 * 2**20 if header >= 64 else (header - 8) // 2 * 2**21 if header >= 8 else 0
    is_negative = header >= 8 and header % 2 == 1
    return float_of(max(step * 2**16 - distance, 0) ^ is_negative << 31)


WRITTEN_HEADERS = [header for header in range(256) if width_of(header) != 8 or not header & 2]


@functools.cache
def headers_with(width, zero_point, sign):
    return [header for header in WRITTEN_HEADERS
            if (width_of(header), zero_point_of(header), header % 2) == (width, zero_point, sign)]


def bfloat16_above(magnitude):
    return float_of(-(-bits_of(magnitude) // 2**16) * 2**16)


class Extent:
    """The largest magnitudes of a block's numbers on both sides of 0."""

    def __init__(self, block):
        positive = bfloat16_above(max((x for x in block if x > 0), default=0.0))
        negative = bfloat16_above(max((-x for x in block if x < 0), default=0.0))
        self.larger, self.smaller = max(positive, negative), min(positive, negative)
        self.is_positive = positive > negative


class Step:
    """The effect of a step's 16 bits on blocks; stochastic: with codes that are rounded at random."""

    def __init__(self, bits, stochastic):
        self.bits, self.inverse = bits, float32(1 / float_of(bits << 16))
        self.beyond = -1 / 128 if stochastic else 63 / 128
        self.least_faint = LEAST_FAINT if stochastic else max(LEAST_FAINT, bits * 2**16 - 27 * 2**21)

    def width(self, extent):
        """A block's width, by search; None if no width suffices."""
        if bits_of(extent.larger) < self.least_faint:
            return 0
        # Products and sums of two float32 give the same float32 if they are rounded to double first.
        larger, smaller = float32(extent.larger * self.inverse), float32(extent.smaller * self.inverse)
        a, c = float32(larger - self.beyond), float32(smaller + (1 - self.beyond))
        without = max(a, c)
        about = max(float32(a * float32(0.8)), float32(c * float32(4 / 3)))

        def holds(width):
            half = 2**(width - 1)
            if width > 8:
                return float32(larger + (1 - self.beyond)) <= half
            return without <= half or width in ZERO_POINT_WIDTHS and about <= half
        return next(filter(holds, range(2, 16)), None)

    def header(self, extent):
        """The header of such a block: the header of the smallest step that is not too small, by search."""
        width = self.width(extent)
        if width == 0 or width > 8:
            return max(width - 8, 0)
        half = 2**(width - 1)

        def least(zero_point):
            return max(float32(extent.larger * float32(1 / (half + zero_point + self.beyond))),
                       float32(extent.smaller * float32(1 / (half - 1 - zero_point + self.beyond))))
        zero_points = (0, half // 4) if width in ZERO_POINT_WIDTHS else (0,)
        zero_point = min(zero_points, key=least)  # The first one if two are equal.
        enough = max(least(zero_point), 2.0**-101 if width == 2 else 0)
        headers = headers_with(width, zero_point, int(extent.is_positive))
        steps = {abs(own_step(self.bits, header)): header for header in headers}
        return steps[min((step for step in steps if step >= enough), default=max(steps))]

    def fits(self, extents, space):
        widths = [self.width(extent) for extent in extents]
        return None not in widths and 4 * sum(widths) <= space


def least_step(extents, stochastic, space):
    """The bits of the smallest bfloat16 with which all codes fit, by search."""
    low, high = bits_of(2.0**-100) >> 16, GREATEST_STEP
    while low < high:
        middle = (low + high) // 2
        low, high = (low, middle) if Step(middle, stochastic).fits(extents, space) else (middle + 1, high)
    return low


def variable_code(y, word):
    if word is None:
        return round(y)
    below = math.floor(y)
    return below + ((math.trunc(float32(y - below) * 2**24) + (word >> 8)) >> 24)


def variable_words(codes, width):
    planes = [sum((code >> plane & 1) << k for k, code in enumerate(codes)) for plane in range(width - 1, -1, -1)]
    return b"".join(plane.to_bytes(4, "little") for plane in planes)


def encode_variable(x, name, seed=None, step=0, offset=0):
    size, blocks = variable_size(len(x), VARIABLE_FORMATS[name]), parts_of(x, 32)
    if not x:
        return b""
    if not all(abs(value) <= GREATEST_MAGNITUDE for value in x):  # False for NaN as well.
        return struct.pack("<H", NAN_SCALE) + bytes(size - 2)
    extents = [Extent(block) for block in blocks]
    bits = least_step(extents, seed is not None, size - 2 - len(blocks))
    headers = [Step(bits, seed is not None).header(extent) for extent in extents]
    message = struct.pack("<H", bits) + bytes(headers)
    for i, (block, header) in enumerate(zip(blocks, headers)):
        inverse = float32(1 / own_step(bits, header))
        codes = [variable_code(float32(value * inverse),
                               None if seed is None else random_word(seed % 2**64, step, offset + 32 * i + k))
                 for k, value in enumerate(block)] + [0] * (32 - len(block))
        message += variable_words([code + zero_point_of(header) for code in codes], width_of(header))
    return message + bytes(size - len(message))


def block_values(words, header, scale):
    width = width_of(header)
    planes = struct.unpack(f"<{width}I", words)
    codes = [sum((plane >> k & 1) << (width - 1 - j) for j, plane in enumerate(planes)) for k in range(32)]
    codes = [code - 2**width if width and code >> (width - 1) else code for code in codes]
    return [scale * (code - zero_point_of(header)) for code in codes]


def decode_variable(message, name, numel):
    if not numel:
        return []
    step, begin, values = message[0] | message[1] << 8, 2 + -(-numel // 32), []
    for headers in parts_of(message[2:begin], 32):
        end = begin + 4 * sum(map(width_of, headers))
        for header in headers:
            if end > len(message):
                values += [math.nan] * 32
                continue
            words, begin = message[begin:begin + 4 * width_of(header)], begin + 4 * width_of(header)
            values += block_values(words, header, own_step(step, header))
        begin = end
    return values[:numel]


def faint_blocks(numel):
    """Blocks of very different sizes, most of them far below the largest."""
    block = torch.arange(numel).div(32, rounding_mode="floor")
    normal = torch.randn(numel, generator=torch.Generator().manual_seed(5))
    return normal * 2.0**torch.where(block % 9 == 4, 0, -(block * 11 % 80))


def falling_blocks(parts):
    """Blocks that each are smaller than the previous one by that part of an octave, from the greatest code down to
    zeros."""
    sizes = torch.arange(23 * parts, dtype=torch.float64).neg().div(parts).exp2().repeat_interleave(32)
    return (torch.rand(sizes.numel(), generator=torch.Generator().manual_seed(6)) - 0.5).sign() * sizes.float()


def lopsided_blocks(parts):
    """Falling blocks that extend from 0 to 1 times as far on one side as on the other."""
    block = torch.arange(13 * parts)
    far = block.double().neg().div(parts).exp2()
    near = far * block.remainder(13) / 12
    up, down = torch.where(block % 2 == 0, torch.stack([far, near]), torch.stack([near, far])).unsqueeze(2)
    within = torch.rand(13 * parts, 32, generator=torch.Generator().manual_seed(7))
    within[:, 3:5] = 1  # One of each sign, so that the extents are exact.
    return torch.where(torch.arange(32) % 2 == 0, within * up, -within * down).float().flatten()


def variable_inputs():
    sizes = torch.arange(20).repeat_interleave(33)
    different = torch.randn(660, generator=torch.Generator().manual_seed(3)) * 2.0**(sizes * 7 % 23)
    least = falling_blocks(1) * 2.0**-86  # Steps that end at half of the smallest one.
    greatest = torch.tensor([1.0, -1.0]).repeat(48) * GREATEST_MAGNITUDE
    alone = torch.arange(256).eq(40).float()  # 16256 fits a step below 1. 16257, which is rounded up to 16320, does not.
    return (*inputs(), alone * 16256, -alone * 16257, -different, different.abs(), different * 2.0**-108, least, -least,
            torch.full((96,), 1.5 * 2.0**127), greatest, greatest.abs(), greatest * (1 + 2.0**-20),
            falling_blocks(1) * GREATEST_MAGNITUDE, falling_blocks(19), lopsided_blocks(90),
            faint_blocks(100), faint_blocks(2100))


class VariableFormats(ExactTestCase):
    def for_each_input(self, check):
        for name in VARIABLE_FORMATS:
            for x in variable_inputs():
                with self.subTest(format=name, size=x.numel()):
                    check(name, x)

    def test_inputs_have_all_headers(self):
        expected = set(WRITTEN_HEADERS)
        headers = {seed: set() for seed in (None, 0)}
        for name, seed in itertools.product(VARIABLE_FORMATS, headers):
            for x in variable_inputs():
                headers[seed].update(encode_variable(x.tolist(), name, seed)[2:][:(x.numel() + 31) // 32])
        for seed, found in headers.items():
            with self.subTest(seed=seed):
                self.assertEqual(expected - found, set())

    def test_nearest(self):
        self.for_each_input(lambda name, x: self.assertEqual(
            bytes(ops.encode(x, name).tolist()), encode_variable(x.tolist(), name)))

    def test_stochastic(self):
        random = {"seed": -3, "step": 2**33 + 5, "offset": 2**34 + 7}
        self.for_each_input(lambda name, x: self.assertEqual(
            bytes(ops.encode(x, name, **random).tolist()), encode_variable(x.tolist(), name, **random)))

    def assert_decodes(self, message, name, numel):
        expected = torch.tensor(decode_variable(bytes(message.tolist()), name, numel), dtype=torch.float64).float()
        self.assert_same(ops.decode(message, name, numel), expected)

    def test_decoded(self):
        self.for_each_input(lambda name, x: self.assert_decodes(ops.encode(x, name), name, x.numel()))

    def test_any_bytes_are_decoded(self):
        generator = torch.Generator().manual_seed(4)
        steps = (None, None, 0, 1, 0x80, 0x7F7F, 0x7F80, NAN_SCALE, 0x8000, 0xBF80, 0xFFFF)  # None: rounds at random.
        fit = []
        for (name, bits), numel, step in itertools.product(VARIABLE_FORMATS.items(), (1, 33, 300, 2100), steps):
            for headers in (0xFF, 0x7F, 0x3F, 0x38):  # From headers that do not fit to faint blocks and zeros only.
                message = torch.randint(0, 256, (variable_size(numel, bits),), dtype=torch.uint8, generator=generator)
                message[2:][:(numel + 31) // 32] &= headers
                if step is not None:
                    message[0], message[1] = step % 256, step // 256
                self.assert_decodes(message, name, numel)
                if step == 0:  # A message that fits contains only zeros.
                    fit.append(not any(map(math.isnan, decode_variable(bytes(message.tolist()), name, numel))))
        self.assertTrue(any(fit))
        self.assertFalse(all(fit))

    def test_sizes(self):
        for name, bits in VARIABLE_FORMATS.items():
            for numel in (0, 1, 31, 32, 33, 1000003):
                self.assertEqual(ops.encoded_size(numel, name), variable_size(numel, bits))


if __name__ == "__main__":
    unittest.main()

"""docs/wire_format.md, followed word by word in Python's own numbers, gives the operators' bytes and values."""
import itertools
import math
import struct
import unittest
from fractions import Fraction

import torch

from support.exact import ExactTestCase, ops, random_bits

BLOCK_FORMATS = {"int8_b32": (8, 32, 127), "int8_b128": (8, 128, 127), "int8_b256": (8, 256, 127),
                 "int6_b32": (6, 32, 31), "int4_b32": (4, 32, 7), "fp8_e4m3_b32": (8, 32, 448)}
FLOAT_FORMATS = {"bf16": 2, "fp16": 2, "fp32": 4}
VARIABLE_FORMATS = {"var6": 6, "var5": 5, "var4": 4, "var3": 3}
GREATEST_STEP = 0x7F7F
GREATEST_FLOAT = 0x7F7FFFFF
LEAST_SCALE = Fraction(1, 2**100)
NAN_SCALE = 0x7FC0


def float_of(bits):
    return struct.unpack("<f", struct.pack("<I", bits))[0]


def bits_of(x):
    return struct.unpack("<I", struct.pack("<f", x))[0]


def float32(x):
    """A double rounded to float32."""
    return struct.unpack("<f", struct.pack("<f", x))[0]


def philox(counter, key):
    """Philox 4x32-10: four words."""
    a, b, c, d = counter
    key0, key1 = key
    for _ in range(10):
        product0, product1 = 0xD2511F53 * a, 0xCD9E8D57 * c
        a, b, c, d = (product1 >> 32) ^ b ^ key0, product1 & 0xFFFFFFFF, (product0 >> 32) ^ d ^ key1, product0 & 0xFFFFFFFF
        key0, key1 = (key0 + 0x9E3779B9) & 0xFFFFFFFF, (key1 + 0xBB67AE85) & 0xFFFFFFFF
    return a, b, c, d


def halves(x):
    return x & 0xFFFFFFFF, x >> 32


def random_word(seed, step, position):
    return philox((*halves(position // 4), *halves(step)), halves(seed))[position % 4]


def least_scale(magnitude, greatest):
    """The bits of the least bfloat16 that reaches the magnitude, by search."""
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
    if word is None:  # Of two that are as near, the one with the even code.
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


def parts_of(values, size):
    return [values[i:i + size] for i in range(0, len(values), size)]


def variable_size(numel, bits):
    return max(4 * bits * -(-numel // 32), 36) if numel else 0


LEAST_FAINT = bits_of(2.0**-101)


def width_of(header):
    """Of a block, from its header."""
    return {1: 2}.get(header % 16, header % 16)


def own_step(step, header):
    """Of a block, from the message's 16 bits and the block's header."""
    lower, upper = header % 16, header // 16
    distance = {0: upper * 2**21, 1: (16 + upper) * 2**21, 2: upper * 2**21}.get(lower, upper * 2**19)
    return float_of(max(step * 2**16 - distance, 0))


class Step:
    """What a step's 16 bits make of blocks; stochastic: of codes that are rounded at random."""

    def __init__(self, bits, stochastic):
        self.bits, self.scale, self.stochastic = bits, float_of(bits << 16), stochastic
        self.inverse = float32(1 / self.scale)
        self.least_faint = LEAST_FAINT if stochastic else max(LEAST_FAINT, bits * 2**16 - 31 * 2**21)

    def greatest_code(self, largest):
        y = float32(largest * self.inverse)  # The product of two float32 is exact in a double.
        return math.ceil(y) if self.stochastic else round(y)  # Python rounds half to even.

    def width(self, largest):
        """Of a block with that largest magnitude."""
        code = self.greatest_code(largest)
        if code >= 2:
            return 1 + code.bit_length()
        return 0 if bits_of(largest) < self.least_faint else 2

    def header(self, largest):
        """Of such a block: that of the least step which is not too small, by search."""
        width = self.width(largest)
        if width == 0:
            return 0
        least = largest / (2**(width - 1) - (1 if self.stochastic else 0.5) - 1 / 64)
        least = float32(min(least, float_of(GREATEST_FLOAT)))  # As good as Inf: no step is so large.
        least = least if width > 2 else max(least, 2.0**-101)
        headers = [upper * 16 + lower for lower in ((1, 2) if width == 2 else (width,)) for upper in range(16)]
        large_enough = [header for header in headers if own_step(self.bits, header) >= least]
        return min(large_enough, key=lambda header: own_step(self.bits, header), default=width)

    def fits(self, largest, space):
        return self.greatest_code(max(largest)) <= 16383 and 4 * sum(map(self.width, largest)) <= space


def least_step(largest, stochastic, space):
    """The bits of the least bfloat16 with which all codes fit, by search."""
    low, high = bits_of(2.0**-100) >> 16, GREATEST_STEP
    while low < high:
        middle = (low + high) // 2
        low, high = (low, middle) if Step(middle, stochastic).fits(largest, space) else (middle + 1, high)
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
    if not all(abs(value) <= float_of(GREATEST_STEP << 16) for value in x):  # NaN is not, either.
        return struct.pack("<H", NAN_SCALE) + bytes(size - 2)
    largest = [max(map(abs, block)) for block in blocks]
    bits = least_step(largest, seed is not None, size - 2 - len(blocks))
    headers = [Step(bits, seed is not None).header(m) for m in largest]
    message = struct.pack("<H", bits) + bytes(headers)
    for i, (block, header) in enumerate(zip(blocks, headers)):
        inverse = float32(1 / own_step(bits, header))
        codes = [variable_code(float32(value * inverse),
                               None if seed is None else random_word(seed % 2**64, step, offset + 32 * i + k))
                 for k, value in enumerate(block)]
        message += variable_words(codes, width_of(header))
    return message + bytes(size - len(message))


def block_values(words, width, scale):
    planes = struct.unpack(f"<{width}I", words)
    codes = [sum((plane >> k & 1) << (width - 1 - j) for j, plane in enumerate(planes)) for k in range(32)]
    return [scale * (code - 2**width if width and code >> (width - 1) else code) for code in codes]


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
            values += block_values(words, width_of(header), own_step(step, header))
        begin = end
    return values[:numel]


def inputs():
    generator = torch.Generator().manual_seed(9)
    for size in (0, 1, 5, 32, 33, 300):
        yield torch.randn(size, generator=generator)
    yield torch.randn(600, generator=generator) * 10.0**torch.randint(-38, 37, (600,), generator=generator)
    yield random_bits(torch.float32, 600, generator)
    yield torch.arange(-300, 300) * 2.0**-101
    yield torch.cat([torch.tensor([127.0, 448.0, 7.0, 31.0, -0.0]), torch.arange(-254, 254) / 2])


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


def faint_blocks(numel):
    """Blocks of very different sizes, most of them far below the largest."""
    block = torch.arange(numel).div(32, rounding_mode="floor")
    normal = torch.randn(numel, generator=torch.Generator().manual_seed(5))
    return normal * 2.0**torch.where(block % 9 == 4, 0, -(block * 11 % 80))


def falling_blocks(parts):
    """Blocks of which each is smaller by that part of an octave, from the greatest code down to zeros."""
    sizes = torch.arange(23 * parts, dtype=torch.float64).neg().div(parts).exp2().repeat_interleave(32)
    return (torch.rand(sizes.numel(), generator=torch.Generator().manual_seed(6)) - 0.5).sign() * sizes.float()


def variable_inputs():
    sizes = torch.arange(20).repeat_interleave(33)
    different = torch.randn(660, generator=torch.Generator().manual_seed(3)) * 2.0**(sizes * 7 % 23)
    greatest = float_of(GREATEST_STEP << 16)
    least = falling_blocks(1) * 2.0**-86  # Steps that end at half of the least one.
    alone = torch.arange(256).eq(40).float()  # With a step of 1 the greatest code, or what is beyond all.
    return (*inputs(), alone * 16383, alone * 16383.5, different, different * 2.0**-108, least,
            torch.full((96,), 1.5 * 2.0**127), torch.full((96,), greatest), falling_blocks(1) * greatest,
            falling_blocks(19), faint_blocks(100), faint_blocks(2100))


class VariableFormats(ExactTestCase):
    def for_each_input(self, check):
        for name in VARIABLE_FORMATS:
            for x in variable_inputs():
                with self.subTest(format=name, size=x.numel()):
                    check(name, x)

    def test_inputs_have_all_headers(self):
        expected = {0, 15} | {16 * upper + lower for upper in range(16) for lower in range(1, 15)}
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
        steps = (None, None, 0, 1, 0x80, 0x7F7F, 0x7F80, NAN_SCALE, 0x8000, 0xBF80, 0xFFFF)  # None: at random.
        fit = []
        for (name, bits), numel, step in itertools.product(VARIABLE_FORMATS.items(), (1, 33, 300, 2100), steps):
            for headers in (0xFF, 0xF7, 0xF3, 0xF1):  # From such that do not fit to faint blocks and zeros alone.
                message = torch.randint(0, 256, (variable_size(numel, bits),), dtype=torch.uint8, generator=generator)
                message[2:][:(numel + 31) // 32] &= headers
                if step is not None:
                    message[0], message[1] = step % 256, step // 256
                self.assert_decodes(message, name, numel)
                if step == 0:  # What is there is 0.
                    fit.append(not any(map(math.isnan, decode_variable(bytes(message.tolist()), name, numel))))
        self.assertTrue(any(fit))
        self.assertFalse(all(fit))

    def test_sizes(self):
        for name, bits in VARIABLE_FORMATS.items():
            for numel in (0, 1, 31, 32, 33, 1000003):
                self.assertEqual(ops.encoded_size(numel, name), variable_size(numel, bits))


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

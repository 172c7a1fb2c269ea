"""Arithmetic of docs/reference/wire-format.md with Python's numbers, and inputs for tests of wire formats."""
import struct

import torch

from support.exact import random_bits

NAN_SCALE = 0x7FC0  # bits of the scale or step of a message that cannot be decoded to numbers


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


def inputs():
    generator = torch.Generator().manual_seed(9)
    for size in (0, 1, 5, 32, 33, 300):
        yield torch.randn(size, generator=generator)
    yield torch.randn(600, generator=generator) * 10.0**torch.randint(-38, 37, (600,), generator=generator)
    yield random_bits(torch.float32, 600, generator)
    yield torch.arange(-300, 300) * 2.0**-101
    yield torch.cat([torch.tensor([127.0, 448.0, 7.0, 31.0, -0.0]), torch.arange(-254, 254) / 2])

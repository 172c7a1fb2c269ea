"""The wire-format kernels as a benchmark launches them, and the instructions that a warp issues for them."""
import ctypes
import dataclasses

import lane_walk

WARP = 32
WARPS_PER_BLOCK = 4
TILE = 1024  # Elements that a warp processes.
ELEMENTS = 1 << 28
ARRAY, MESSAGE = 1 << 40, 1 << 41
SLOT = 128  # Messages of ranks begin at multiples of this.

# In a whole tile of an aligned message, lanes differ only at its ends in bytes and in the last iteration of copying
# 16-byte granules. The first lane has most iterations, and these two lanes handle the first bytes of either end.
LANES = (0, 16)
# Messages of tiles have at most two alignments: a tile's bytes are a multiple of 8.
TILES = (0, 1)


@dataclasses.dataclass(frozen=True)
class Format:
    """`mangled`: its part of a kernel's mangled name; `tile_bytes`: bytes of a tile's message."""
    name: str
    mangled: str
    tile_bytes: int

    @property
    def bytes_per_element(self):
        return self.tile_bytes / TILE


def block_format(name, element, bits, block):
    return Format(name, f"BlockFormatINS3_{element}ELl{block}E", TILE // block * (2 + block * bits // 8))


FORMATS = [
    block_format("int8_b32", "12SymmetricIntILi8EE", 8, 32), block_format("int8_b128", "12SymmetricIntILi8EE", 8, 128),
    block_format("int8_b256", "12SymmetricIntILi8EE", 8, 256), block_format("fp8_e4m3_b32", "10Float8E4M3", 8, 32),
    block_format("int6_b32", "12SymmetricIntILi6EE", 6, 32), block_format("int4_b32", "12SymmetricIntILi4EE", 4, 32),
    Format("bf16", "FloatFormatINS3_8Bfloat16E", 2 * TILE), Format("fp16", "FloatFormatINS3_8Binary16E", 2 * TILE),
    Format("fp32", "FloatFormatINS3_8Binary32E", 4 * TILE),
]


# The arguments in ops/cuda/wire/wire_kernels.h. If their size differs from the machine code's, the walk fails.
class Rounding(ctypes.Structure):
    _fields_ = [("stochastic", ctypes.c_bool), ("seed", ctypes.c_uint64), ("step", ctypes.c_uint64),
                ("position", ctypes.c_uint64)]


class Shards(ctypes.Structure):
    _fields_ = [("count", ctypes.c_uint32), ("left_out", ctypes.c_uint32), ("stride", ctypes.c_int64),
                ("each", ctypes.c_int64), ("over", ctypes.c_uint32)]


class EncodeArguments(ctypes.Structure):
    _fields_ = [("type", ctypes.c_uint32), ("x", ctypes.c_uint64), ("n", ctypes.c_int64), ("residual", ctypes.c_uint64),
                ("rounding", Rounding), ("message", ctypes.c_uint64), ("shards", Shards)]


class DecodeArguments(ctypes.Structure):
    _fields_ = [("message", ctypes.c_uint64), ("n", ctypes.c_int64), ("type", ctypes.c_uint32), ("out", ctypes.c_uint64),
                ("shards", Shards)]


class RankParts(ctypes.Structure):
    _fields_ = [("first", ctypes.c_uint64), ("behind_own", ctypes.c_uint64), ("stride", ctypes.c_int64),
                ("ranks", ctypes.c_int64), ("own_rank", ctypes.c_int64), ("type", ctypes.c_uint32),
                ("own", ctypes.c_uint64), ("own_residual", ctypes.c_uint64), ("n", ctypes.c_int64), ("reduction", ctypes.c_uint32)]


class AverageEncodeArguments(ctypes.Structure):
    _fields_ = [("parts", RankParts), ("mean_residual", ctypes.c_uint64), ("rounding", Rounding),
                ("message", ctypes.c_uint64)]


def encode():
    """Arguments for one whole message of float32, rounded to nearest, without residuals."""
    return EncodeArguments(x=ARRAY, n=ELEMENTS, message=MESSAGE, shards=Shards(count=1, left_out=1))


def decode():
    return DecodeArguments(message=MESSAGE, n=ELEMENTS, out=ARRAY, shards=Shards(count=1, left_out=1))


def average_encode(wire_format, ranks):
    """Arguments for messages only: no rank's part is an array."""
    message_bytes = -(-ELEMENTS // TILE * wire_format.tile_bytes // SLOT) * SLOT
    return AverageEncodeArguments(
        parts=RankParts(first=MESSAGE, stride=message_bytes, ranks=ranks, own_rank=ranks, n=ELEMENTS), message=ARRAY)


class OtherArguments(Exception):
    """The machine code takes other arguments than this script passes."""


def kernel_of(kernels, name, wire_format):
    """The kernel without residuals, if there are two."""
    found = [kernel for mangled, kernel in kernels.items()
             if f"{len(name)}{name}I" in mangled and wire_format.mangled in mangled and "ELb1EE" not in mangled]
    if len(found) != 1:
        raise OtherArguments(f"the machine code has {len(found)} kernels {name} of {wire_format.name}")
    return found[0]


def issues_of(kernel, arguments, lanes=LANES, tiles=TILES):
    """Instructions that a warp issues for a tile, averaged over `tiles`."""
    if ctypes.sizeof(arguments) != kernel.argument_bytes:
        raise OtherArguments(f"{kernel.name} takes {kernel.argument_bytes} bytes of arguments, "
                             f"not {ctypes.sizeof(arguments)}: wire_walks.py does not fit wire_kernels.h")
    constants = dict(enumerate(bytes(arguments), kernel.argument_offset))
    issued = 0
    for tile in tiles:
        places = [{"SR_TID.X": tile % WARPS_PER_BLOCK * WARP + lane, "SR_CTAID.X": tile // WARPS_PER_BLOCK, "SR_CTAID.Y": 0,
                   "SR_CgaCtaId": 0} for lane in lanes]
        issued += sum(lane_walk.warp_issues(kernel, constants, places))
    return issued / len(tiles)


@dataclasses.dataclass
class FusedCounts:
    """Instructions that a warp issues for a tile of decode-sum-encode, by number of messages; and the shares of one
    more message and of the tile itself."""
    by_messages: dict
    per_message: float
    once: float


MESSAGES = (2, 4, 8, 16)


def fused_counts(kernels, wire_format):
    kernel = kernel_of(kernels, "wire_average_encode_kernel", wire_format)
    by_messages = {count: issues_of(kernel, average_encode(wire_format, count)) for count in MESSAGES}
    few, many = MESSAGES[-2:]
    per_message = (by_messages[many] - by_messages[few]) / (many - few)
    return FusedCounts(by_messages, per_message, by_messages[many] - many * per_message)

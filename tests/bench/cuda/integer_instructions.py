"""Machine instructions on integers and predicates. A value is a 32-bit number, or None if it depends on data; a
predicate is True, False or None. `modifiers` are the suffixes of a name in nvdisasm's output; operands are in its
order.
"""
import struct

WORD = 0xFFFFFFFF


def signed(value):
    return value - (1 << 32) if value >> 31 else value


def both(a, b):
    """a and b; either may be None."""
    if a is False or b is False:
        return False
    return None if a is None or b is None else True


def either(a, b):
    return negated(both(negated(a), negated(b)))


def negated(a):
    return None if a is None else not a


COMPARISONS = {
    "EQ": lambda a, b: a == b, "NE": lambda a, b: a != b, "LT": lambda a, b: a < b,
    "LE": lambda a, b: a <= b, "GT": lambda a, b: a > b, "GE": lambda a, b: a >= b,
}
JOINED = {"AND": both, "OR": either}


def compare(modifiers, a, b, joined_with, below=None):
    """ISETP's predicate; with EX, of high words, where `below` is the predicate of the low words."""
    if a is None or b is None:
        result = None
    else:
        if "U32" not in modifiers:
            a, b = signed(a), signed(b)
        comparison = next(modifier for modifier in modifiers if modifier in COMPARISONS)
        result = below if "EX" in modifiers and a == b else COMPARISONS[comparison](a, b)
    joined = next(modifier for modifier in modifiers if modifier in JOINED)
    return JOINED[joined](result, joined_with)


def look_up(table, a, b, c):
    """For each bit position, the bits of a, b and c select one of the table's eight bits."""
    result = 0
    for row in range(8):
        if table >> row & 1:
            result |= (a if row & 4 else ~a) & (b if row & 2 else ~b) & (c if row & 1 else ~c)
    return result & WORD


def look_up_predicate(table, *inputs):
    """None unless all table rows that the known inputs allow agree."""
    rows = [row for row in range(8) if all(known is None or known == bool(row & bit) for known, bit in zip(inputs, (4, 2, 1)))]
    results = {bool(table >> row & 1) for row in rows}
    return results.pop() if len(results) == 1 else None


def permute(a, selector, b):
    """PRMT: each of the four result bytes is one of the eight source bytes, or its sign."""
    source = a | b << 32
    result = 0
    for place in range(4):
        nibble = selector >> 4 * place & 15
        byte = source >> 8 * (nibble & 7) & 255
        if nibble & 8:
            byte = 255 if byte >> 7 else 0
        result |= byte << 8 * place
    return result


def shift(modifiers, low, by, high):
    """SHF: a part of the 64 bits high:low, shifted."""
    by &= 31 if "W" in modifiers else 63
    if "W" not in modifiers and {"U32", "S32"} & set(modifiers):
        by = min(by, 32)
    if "L" in modifiers:
        shifted = (high << 32 | low) << by
        return shifted >> 32 & WORD if "U64" in modifiers or "S64" in modifiers or "HI" in modifiers else low << by & WORD
    shifted = ((signed(high) if "S32" in modifiers or "S64" in modifiers else high) << 32 | low) >> by
    return (shifted >> 32 if "HI" in modifiers else shifted) & WORD


def shifted_address(modifiers, a, b, high, by):
    """LEA: a << by, or the high word of that, plus b; unmasked."""
    if "HI" not in modifiers:
        return (a << by & WORD) + b
    if "SX32" in modifiers:
        high = WORD if a >> 31 else 0
    return ((high << 32 | a) << by >> 32 & WORD) + b


def product(modifiers, a, b):
    """The 64-bit product."""
    return a * b if "U32" in modifiers else signed(a) * signed(b)


def extreme(modifiers, values, smaller):
    """VIMNMX: the minimum or the maximum."""
    chosen = (min if smaller else max)(values, key=(lambda value: value) if "U32" in modifiers else signed)
    return chosen & WORD


def half_constant(high, low):
    """The word whose halves are these numbers as float16: HFMA2 sets constants this way."""
    return struct.unpack("<I", struct.pack("<ee", low, high))[0]

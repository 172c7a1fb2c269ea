"""A lane's registers and predicates, and the effect of all machine instructions except branches on them.

Integers, addresses and predicates are computed. Values are unknown (None) if they are floats, come from other lanes or
are read from memory. Votes are taken to be false: kernels vote on whether an overflow is near.
"""
import functools
import re

from integer_instructions import (WORD, compare, extreme, half_constant, look_up, look_up_predicate, negated, permute,
                                  product, shift, shifted_address)

# The results depend on data.
UNKNOWN_RESULT = set("""LDG LD LDS SHFL FADD FMUL FFMA FMNMX FSEL FSETP FCHK MUFU F2I F2F F2FP I2F I2FP HADD2 HMUL2 HFMA2 HSETP2
    DADD DMUL DFMA DSETP R2P P2R POPC FLO""".split())
NO_RESULT = set("""ST STG STS LDGSTS LDGDEPBAR DEPBAR NOP BSSY BSYNC BREAK WARPSYNC WARPSYNC.ALL ERRBAR MEMBAR BAR CCTL
    ENDCOLLECTIVE""".split())


class UnknownInstruction(Exception):
    """An instruction whose meaning this script does not know and would need."""


REGISTER = re.compile(r"(U?R)(\d+)")
CONSTANT = re.compile(r"c\[(0x\w+)\]\s*\[(U?R\w+)?\+?(-?0x\w+)?\]")


@functools.cache
def register_of(word, offset=0):
    """The key of a register; None if `word` is not a register, or is one that is always 0."""
    found = REGISTER.fullmatch(word)
    return (found[1], int(found[2]) + offset) if found else None


@functools.cache
def immediate(word):
    """The integer; None for the digits of a float, or a part of a register."""
    if word in ("RZ", "URZ", "SRZ"):
        return 0
    try:
        return int(word, 0) & WORD
    except ValueError:
        return None


@functools.cache
def constant_place(word):
    """(bank, register or None, offset)"""
    bank, register, place = CONSTANT.fullmatch(word).groups()
    return int(bank, 16), register, int(place or "0", 16)


@functools.cache
def is_negated(word):
    return word[0] == "-" and not word[1].isdigit()


class Lane:
    """`constants`: the bytes of bank 0 by address. `special`: the lane's position, by names of registers such as
    SR_TID.X. `visits`: the number of visits of each instruction."""

    def __init__(self, kernel, constants, special):
        self.kernel = kernel
        self.constants = constants
        self.special = special
        self.registers = {}
        self.predicates = {"PT": True, "UPT": True}
        self.visits = [0] * len(kernel.instructions)

    def constant(self, word, count=4, offset=0):
        bank, register, place = constant_place(word)
        base = self.value(register) if register else 0
        if base is None:
            return None
        begin = base + place + offset
        if bank == 2:
            found = self.kernel.tables[begin:begin + count]
        else:
            found = [self.constants[i] for i in range(begin, begin + count) if i in self.constants]
        return int.from_bytes(bytes(found), "little") if len(found) == count else None

    def value(self, word, high=0):
        """The value of an operand; with `high` = 1, of the following register."""
        register = register_of(word, high)
        if register:
            return self.registers.get(register)
        if is_negated(word):
            inner = self.value(word[1:], high)
            return None if inner is None else -inner & WORD
        if word[0] == "~":
            inner = self.value(word[1:], high)
            return None if inner is None else ~inner & WORD
        return self.constant(word, offset=4 * high) if word.startswith("c[") else immediate(word)

    def predicate(self, word):
        return negated(self.predicates.get(word[1:])) if word[0] == "!" else self.predicates.get(word)

    def put(self, word, value, offset=0):
        register = register_of(word, offset)
        if register:
            self.registers[register] = value if value is None else value & WORD

    def put_predicate(self, word, value):
        if word not in ("PT", "UPT"):
            self.predicates[word] = value

    def put_wide(self, word, value):
        self.put(word, value)
        self.put(word, None if value is None else value >> 32, 1)

    def forget(self, operands, registers):
        """Marks the results of an instruction as unknown: predicates, and `registers` registers from the first one
        on."""
        for word in operands:
            if not is_predicate(word):
                for offset in range(registers):
                    self.put(word, None, offset)
                return
            if word[0] != "!":
                self.put_predicate(word, None)


@functools.cache
def is_predicate(word):
    return re.fullmatch(r"!?U?P[T\d]", word) is not None


def results(name, modifiers):
    """The number of registers that an instruction writes."""
    if "128" in modifiers:
        return 4
    if "64" in modifiers or (name in ("F2F", "I2F") and modifiers[:1] == ["F64"]) or name in ("DADD", "DMUL", "DFMA"):
        return 2
    return 1


def split_off_predicates(operands):
    """The operands, and the predicates after the first operand: the carries of an addition."""
    first, rest = operands[0], operands[1:]
    carries = []
    while rest and is_predicate(rest[0]) and rest[0][0] != "!":
        carries.append(rest.pop(0))
    return first, carries, rest


def needs_all(function):
    """function(lane, modifiers, operands) -> value; None if it needs an unknown value."""
    @functools.wraps(function)
    def guarded(*arguments):
        try:
            return function(*arguments)
        except TypeError:  # Arithmetic with None.
            return None
    return guarded


def sum_of(lane, words):
    """The unmasked sum. A subtraction adds ~b + 1, as the processor does, so that it carries."""
    total = 0
    for word in words:
        if is_negated(word):
            total += (~lane.value(word[1:]) & WORD) + 1
        else:
            total += lane.value(word)
    return total


def add(lane, modifiers, operands):
    result, carries, rest = split_off_predicates(operands)
    carried_in = [lane.predicate(word) for word in rest if is_predicate(word)] if "X" in modifiers else []
    words = [word for word in rest if not is_predicate(word)]
    try:
        total = sum_of(lane, words) + sum(int(carry) for carry in carried_in)
    except TypeError:
        total = None
    lane.put(result, total)
    for number, carry in enumerate(carries, 1):
        lane.put_predicate(carry, None if total is None else total >> 32 >= number)


def multiply_add(lane, modifiers, operands):
    result, carries, (a, b, c, *carried_in) = split_off_predicates(operands)
    wide = "WIDE" in modifiers
    try:
        high = lane.value(c, True) if wide and c not in ("RZ", "URZ") else 0
        added = lane.value(c) + (high << 32) + sum(int(lane.predicate(word)) for word in carried_in)
        multiplied = product(modifiers, lane.value(a), lane.value(b))
        total = (multiplied >> 32 if "HI" in modifiers else multiplied) + added
    except TypeError:
        total = None
    if carries:
        lane.put_predicate(carries[0], None)  # No kernel uses this carry; a use of an unknown one would be noticed.
    (lane.put_wide if wide else lane.put)(result, total)


def set_predicate(lane, modifiers, operands):
    first, second, a, b, joined_with, *below = operands
    less = lane.predicate(below[0]) if below else None
    lane.put_predicate(first, compare(modifiers, lane.value(a), lane.value(b), lane.predicate(joined_with), less))
    lane.put_predicate(second, None)


def logic(lane, _, operands):
    *outs, a, b, c, table, joined_with = operands
    try:
        value = look_up(int(table, 16), lane.value(a), lane.value(b), lane.value(c))
    except TypeError:
        value = None
    lane.put(outs[-1], value)
    if len(outs) == 2:
        lane.put_predicate(outs[0], None if value is None else value != 0 or bool(lane.predicate(joined_with)))


def predicate_logic(lane, _, operands):
    first, second, a, b, c, table, other_table = operands
    inputs = [lane.predicate(word) for word in (a, b, c)]
    lane.put_predicate(first, look_up_predicate(int(table, 16), *inputs))
    lane.put_predicate(second, look_up_predicate(int(other_table, 16), *inputs))


def select(lane, _, operands):
    result, a, b, chosen = operands
    which = lane.predicate(chosen)
    lane.put(result, None if which is None else lane.value(a if which else b))


def address(lane, modifiers, operands):
    result, carries, rest = split_off_predicates(operands)
    words = [word for word in rest if not is_predicate(word)]
    carried_in = [lane.predicate(word) for word in rest if is_predicate(word)]
    a, b, *more = words
    has_high = len(more) == 2
    try:
        high = lane.value(more[0]) if has_high else 0
        total = shifted_address(modifiers, lane.value(a), lane.value(b), high, lane.value(more[-1]))
        total += sum(int(carry) for carry in carried_in)
    except TypeError:
        total = None
    lane.put(result, total)
    for carry in carries:
        lane.put_predicate(carry, None if total is None else total >> 32 > 0)


@needs_all
def shifted(lane, modifiers, words):
    return shift(modifiers, *map(lane.value, words))


@needs_all
def permuted(lane, _, words):
    return permute(*map(lane.value, words))


@needs_all
def smallest(lane, modifiers, words):
    *values, smaller = words
    return extreme(modifiers, [lane.value(word) for word in values], lane.predicate(smaller))


@needs_all
def sum_smallest(lane, modifiers, words):
    a, b, c, smaller = words
    return extreme(modifiers, [(lane.value(a) + lane.value(b)) & WORD, lane.value(c)], lane.predicate(smaller))


def special_value(lane, _, words):
    if words[0] not in lane.special:
        raise UnknownInstruction(f"{lane.kernel.name} reads {words[0]}")
    return lane.special[words[0]]


def moved(lane, _, words):
    return lane.value(words[0])


ONE_RESULT = {"SHF": shifted, "PRMT": permuted, "VIMNMX": smallest, "VIMNMX3": smallest, "VIADDMNMX": sum_smallest,
              "S2R": special_value, "S2UR": special_value, "MOV": moved, "R2UR": moved}
WITH_FLAGS = {"IADD3": add, "VIADD": add, "IMAD": multiply_add, "ISETP": set_predicate, "LOP3": logic, "SEL": select,
              "PLOP3": predicate_logic, "LEA": address}


def load_constant(lane, modifiers, operands):
    size = 1 if "U8" in modifiers else 4
    lane.put(operands[0], lane.constant(operands[1], size))
    if "64" in modifiers:
        lane.put(operands[0], lane.constant(operands[1], 4, 4), 1)


def set_constant(lane, _, operands):
    """HFMA2 as the compiler uses it for constants: -RZ * RZ + a pair of halves."""
    result, a, b, high, low = operands
    lane.put(result, half_constant(float(high), float(low)) if {a.strip("-"), b} == {"RZ"} else None)


@functools.cache
def parts_of(name):
    """The name without the prefix of the uniform pipe, and its modifiers."""
    plain, *modifiers = name.removeprefix("U").split(".")
    return plain, modifiers


def execute(lane, instruction):
    """Executes any instruction except a branch."""
    plain, modifiers = parts_of(instruction.name)
    operands = instruction.operands
    if plain in NO_RESULT:
        return
    if plain == "LDC":
        load_constant(lane, modifiers, operands)
    elif plain == "CS2R":
        lane.put_wide(operands[0], 0 if operands[1] == "SRZ" else None)
    elif plain == "VOTE":
        for word in operands[:2]:
            if is_predicate(word):
                lane.put_predicate(word, False)
    elif plain == "HFMA2" and len(operands) == 5:
        set_constant(lane, modifiers, operands)
    elif plain in ONE_RESULT:
        lane.put(operands[0], ONE_RESULT[plain](lane, modifiers, operands[1:]))
    elif plain in WITH_FLAGS:
        WITH_FLAGS[plain](lane, modifiers, operands)
    elif plain in UNKNOWN_RESULT:
        lane.forget(operands, results(plain, modifiers))
    else:
        raise UnknownInstruction(f"{lane.kernel.name}: {instruction}")

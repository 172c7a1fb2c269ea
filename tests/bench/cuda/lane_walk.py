"""Follows a kernel's machine code as one lane would, given its arguments and its position, and counts instructions.

At a branch that depends on an unknown value (lane.py), the lane takes the side that calls no subroutine: subroutines
are the slow paths of divisions and reciprocals. If neither side calls one, the lane falls through: the compiler jumps
to the rare case.
"""
import functools

from integer_instructions import both
from lane import Lane, UnknownInstruction, execute, is_predicate, parts_of, results

MOST_STEPS = 200_000
BRANCHES = {"BRA", "BRX", "EXIT", "CALL", "RET", "BPT"}


def goes(lane, place, condition):
    """Whether a lane takes a branch. If the condition is unknown, it does so only if falling through leads to a
    call."""
    if condition is not None:
        return condition
    instructions = lane.kernel.instructions
    for instruction in instructions[place + 1:]:
        name = parts_of(instruction.name)[0]
        if name == "CALL":
            return True
        if name in BRANCHES or name == "BSYNC":
            return False
    return False


def condition_of(lane, instruction):
    conditions = [lane.predicate(word) for word in instruction.operands if is_predicate(word)]
    if instruction.guard:
        conditions.append(lane.predicate(instruction.guard))
    return functools.reduce(both, conditions, True)


def next_place(lane, place):
    """The lane's next place after a branch; None for the end."""
    instruction = lane.kernel.instructions[place]
    name, modifiers = parts_of(instruction.name)
    if name == "BRA" and "DIV" in modifiers:  # The branch of diverged lanes.
        return place + 1
    if not goes(lane, place, condition_of(lane, instruction)):
        return place + 1
    if name == "EXIT":
        return None
    if name == "BRA":
        return lane.kernel.places[instruction.operands[-1]]
    if name == "BRX":
        offset = lane.value(instruction.operands[0].split()[0])
        following = lane.kernel.instructions[place + 1].address
        return lane.kernel.places[following + offset + int(instruction.operands[0].split()[1], 16)]
    raise UnknownInstruction(f"{lane.kernel.name}: a lane came to {instruction}")


def walk(kernel, constants, special):
    """How often a lane executes each instruction."""
    lane = Lane(kernel, constants, special)
    place = 0
    for _ in range(MOST_STEPS):
        lane.visits[place] += 1
        instruction = kernel.instructions[place]
        if parts_of(instruction.name)[0] in BRANCHES:
            place = next_place(lane, place)
            if place is None:
                return lane.visits
            continue
        guard = lane.predicate(instruction.guard) if instruction.guard else True
        if guard is True:
            execute(lane, instruction)
        elif guard is None:
            lane.forget(instruction.operands, results(*parts_of(instruction.name)))
        place += 1
    raise UnknownInstruction(f"{kernel.name}: a lane does not come to its end in {MOST_STEPS} steps")


def warp_issues(kernel, constants, places):
    """How often a warp, whose lanes are at `places`, issues each instruction: the maximum over its lanes."""
    return [max(visits) for visits in zip(*(walk(kernel, constants, place) for place in places))]

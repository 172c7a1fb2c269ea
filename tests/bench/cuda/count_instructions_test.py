#!/usr/bin/env python3
"""Tests how count_instructions reads and follows machine code, with the listing of a small kernel."""
import pathlib
import re
import struct
import unittest

import integer_instructions as integers
import lane
import lane_walk
import machine_code
import wire_walks

LISTING = (pathlib.Path(__file__).parent / "sample_kernel.sass").read_text()
NAME = "_Z13sample_kernel9Arguments"


def sample(listing=LISTING):
    return machine_code.read_kernels(listing)[NAME]


def arguments(kind=0, n=1 << 40, turns=3):
    return struct.pack("<IxxxxQQqixxxx", kind, 1 << 33, 1 << 34, n, turns)


def lane_at(thread, block=2):
    return {"SR_TID.X": thread, "SR_CTAID.X": block}


class Listing(unittest.TestCase):
    def test_has_instructions_labels_tables_and_places_of_arguments(self):
        kernel = sample()
        self.assertEqual((kernel.argument_offset, kernel.argument_bytes), (0x210, len(arguments())))
        self.assertEqual(struct.unpack("<III", kernel.tables), (0x1B0, 0x140, 0x2A0))
        self.assertEqual(kernel.instructions[kernel.places[".L_x_4"]].address, 0x330)
        self.assertEqual(kernel.instructions[kernel.places[0x90]], machine_code.Instruction(0x90, "P0", "EXIT", []))
        self.assertEqual(str(kernel.instructions[kernel.places[0x3A0]]), "0x03a0 @!P0 BRA .L_x_4")
        self.assertEqual([instruction.address for instruction in kernel.instructions],
                         list(range(0, 16 * len(kernel.instructions), 16)))

    def test_comments_and_reuse_are_no_operands(self):
        self.assertEqual(machine_code.operands_of('R8 -0x140 (*"BRANCH_TARGETS .L_x_1,.L_x_2"*)'), ["R8 -0x140"])
        self.assertEqual(machine_code.operands_of("R1, R2.reuse, `(.L_x_7)"), ["R1", "R2", ".L_x_7"])


class Walk(unittest.TestCase):
    def visits(self, place, listing=LISTING, **values):
        """Visits by address."""
        kernel = sample(listing)
        constants = dict(enumerate(arguments(**values), kernel.argument_offset))
        return {instruction.address: count for instruction, count in
                zip(kernel.instructions, lane_walk.walk(kernel, constants, place)) if count}

    def test_counts_every_instruction_from_the_first_to_the_last(self):
        # 20 before the jump through the table, 5 in its case, 9 before the loop, 3 iterations of 8, 1, two iterations
        # of 6 (rows 0 and 32 are the first lane's), 18 after it. The slow path of the division is not taken.
        self.assertEqual(sum(self.visits(lane_at(0)).values()), 20 + 5 + 9 + 3 * 8 + 1 + 2 * 6 + 18)
        self.assertEqual(sum(self.visits(lane_at(8)).values()), 20 + 5 + 9 + 3 * 8 + 1 + 6 + 18)

    def test_loops_have_the_turns_that_arguments_say(self):
        for turns in (1, 2, 16):
            with self.subTest(turns=turns):
                visits = self.visits(lane_at(0), turns=turns)
                self.assertEqual({address: count for address, count in visits.items() if 0x330 <= address <= 0x3A0},
                                 {address: turns for address in range(0x330, 0x3B0, 16)})
        self.assertNotIn(0x330, self.visits(lane_at(0), turns=0))

    def test_the_table_and_the_comparisons_choose_a_case(self):
        firsts = {0: 0x1B0, 1: 0x140, 2: 0x250}
        for kind, chosen in firsts.items():
            with self.subTest(kind=kind):
                visits = self.visits(lane_at(0), kind=kind)
                self.assertEqual([first for first in firsts.values() if first in visits], [chosen])

    def test_a_lane_behind_the_array_ends_at_once(self):
        self.assertEqual(sum(self.visits(lane_at(0), n=64).values()), 10)
        self.assertEqual(sum(self.visits(lane_at(5), n=70).values()), 20 + 5 + 9 + 3 * 8 + 1 + 2 * 6 + 18)
        self.assertEqual(sum(self.visits(lane_at(6), n=70).values()), 10)

    def test_a_warp_issues_what_the_lane_needs_that_needs_it_most_often(self):
        kernel = sample()
        constants = dict(enumerate(arguments(n=65), kernel.argument_offset))
        lanes = [lane_at(lane) for lane in range(32)]  # All except the first end at once.
        self.assertEqual(lane_walk.warp_issues(kernel, constants, lanes), lane_walk.walk(kernel, constants, lanes[0]))

    def test_a_trap_and_what_is_not_known_are_refused(self):
        with self.assertRaisesRegex(lane.UnknownInstruction, "a lane came to 0x0240 BPT.TRAP 0x1"):
            self.visits(lane_at(0), kind=3)
        with self.assertRaisesRegex(lane.UnknownInstruction, "0x0040 FRESH.WIDE R4"):
            self.visits(lane_at(0), LISTING.replace("IMAD.WIDE.U32 R4, R4", "FRESH.WIDE R4, R4"))
        with self.assertRaisesRegex(lane.UnknownInstruction, "does not come to its end"):
            self.visits(lane_at(0), turns=1 << 30)

    def test_arguments_of_another_size_are_refused(self):
        with self.assertRaisesRegex(wire_walks.OtherArguments, "takes 40 bytes of arguments, not 104"):
            wire_walks.issues_of(sample(), wire_walks.encode())
        with self.assertRaisesRegex(wire_walks.OtherArguments, "0 kernels wire_decode_kernel of int8_b32"):
            wire_walks.kernel_of({NAME: sample()}, "wire_decode_kernel", wire_walks.FORMATS[0])


class Integers(unittest.TestCase):
    def run_lane(self, *instructions, **registers):
        """The lane after instructions in a listing's notation; registers R1 and so on have the given values."""
        text = LISTING[:re.search(r"^ +/\*0000\*/ +LDC R1", LISTING, re.MULTILINE).start()]
        text += "".join(f"        /*{16 * i:04x}*/  {line} ;\n" for i, line in enumerate(instructions))
        kernel = sample(text)
        reached = lane.Lane(kernel, {}, lane_at(0))
        for name, value in registers.items():
            reached.put(name, value)
        for instruction in kernel.instructions:
            lane.execute(reached, instruction)
        return reached

    def test_sums_and_differences_of_64_bits_carry(self):
        after = self.run_lane("IADD3 R5, P0, R1, -R3, RZ", "IADD3.X R6, R2, ~R4, RZ, P0, !PT", R1=0, R2=5, R3=1, R4=2)
        self.assertEqual((after.value("R5"), after.value("R6")), (0xFFFFFFFF, 2))  # 5 * 2^32 - (2 * 2^32 + 1)
        after = self.run_lane("IADD3 R4, P0, P1, R1, R2, R3", R1=0xFFFFFFFF, R2=0xFFFFFFFF, R3=2)
        self.assertEqual((after.value("R4"), after.predicate("P0"), after.predicate("P1")), (0, True, True))

    def test_products_of_64_bits(self):
        after = self.run_lane("IMAD.WIDE.U32 R4, R1, 0x440, R2", R1=1 << 31, R2=7, R3=1)
        self.assertEqual((after.value("R4"), after.value("R5")), (7, 0x221))
        after = self.run_lane("IMAD.WIDE R4, R1, 0x2, RZ", "IMAD.HI.U32 R6, R1, 0x2, RZ", R1=0xFFFFFFFF)
        self.assertEqual((after.value("R4"), after.value("R5"), after.value("R6")), (0xFFFFFFFE, 0xFFFFFFFF, 1))

    def test_comparisons_of_64_bits(self):
        for low, high, expected in ((5, 0, True), (4, 0, False), (0, 1, True), (9, 0xFFFFFFFF, False)):
            after = self.run_lane("ISETP.GT.U32.AND P0, PT, R1, 0x4, PT", "ISETP.GT.AND.EX P0, PT, R2, RZ, PT, P0", R1=low, R2=high)
            self.assertEqual(after.predicate("P0"), expected, (low, high))

    def test_shifts_addresses_and_bytes(self):
        self.assertEqual(integers.shift(["R", "U32", "HI"], 0, 5, 0x6F), 3)
        self.assertEqual(integers.shift(["R", "S32", "HI"], 0, 31, 0x80000000), 0xFFFFFFFF)
        self.assertEqual(integers.shift(["L", "U64", "HI"], 0xC0000000, 1, 1), 3)
        self.assertEqual(integers.shift(["R", "U64"], 1, 1, 1), 0x80000000)
        self.assertEqual(integers.shifted_address(["HI"], 0x60, 1, 0, 27), 4)  # 0x60 / 32 + 1
        self.assertEqual(integers.permute(0x7FC0, 0x9910, 0), 0x7FC0)
        self.assertEqual(integers.permute(0xFFC0, 0x9910, 0), 0xFFFFFFC0)
        self.assertEqual(integers.look_up(0xF8, 0b1100, 0b0011, 0b0001), 0b1101)  # a | b & c
        self.assertEqual(integers.half_constant(-0.0, 0.0), 0x80000000)
        self.assertEqual(integers.half_constant(0.0, 5.9604644775390625e-08), 1)

    def test_what_hangs_on_data_is_unknown_and_stays_so(self):
        after = self.run_lane("LDG.E.64 R2, desc[UR4][R1.64]", "VIADD R4, R3, 0x1", "ISETP.EQ.AND P0, PT, R4, RZ, PT", R1=0, R4=0)
        self.assertEqual((after.value("R2"), after.value("R4"), after.predicate("P0")), (None, None, None))
        self.assertEqual(integers.both(None, False), False)
        self.assertEqual(integers.either(None, True), True)
        self.assertEqual(integers.look_up_predicate(0x80, True, None, True), None)
        self.assertEqual(integers.look_up_predicate(0x80, False, None, True), False)


if __name__ == "__main__":
    unittest.main()

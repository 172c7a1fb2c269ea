// The constants of bit_planes-inl.h. They are in a separate source file to hide their values from the compiler.
// If it knows constants, it computes them again for every block, with as many instructions as all other work takes.
#pragma once

#include <cstdint>

namespace narrowcast::cpu {

struct PlaneTables {
  uint64_t masks[3];        // Bits that each of the three exchanges moves up.
  uint64_t diagonal;        // Bit i of byte i: the identity matrix.
  uint8_t reversed[16];     // The 8 bytes of each half, in reverse order.
  uint32_t quads[16];       // The first 4-byte words of all 16 bytes, then the second ones; only 8 entries are used.
  uint64_t quarters[4];     // A block's 8-byte quarters, with the middle ones exchanged.
  uint8_t by_plane[16];     // From elements to planes: bytes of both halves alternately, the last ones first.
  uint8_t join_halves[16];  // The next step: two bytes of each half alternately.
  uint8_t part_halves[16];  // The inverse of join_halves.
  uint8_t by_element[16];   // The inverse of by_plane.
};

// All byte permutations before or after a product of bit matrices, combined into one permutation of the 32 bytes of a
// vector, or of 32 bytes of two wider vectors. Rows are 8 bytes each, in reverse order. The index [9] is the width of
// the codes, at most 8.
struct PlaneOrders {
  alignas(64) uint8_t rows_of_codes[64];      // From the low bytes of the 16 words of two vectors; only 32 entries are
                                              // used.
  alignas(32) uint8_t planes_of_rows[9][32];  // To the first `width` planes, followed by undefined bytes.
  alignas(32) uint8_t rows_of_planes[9][32];  // From the first `width` planes; the first plane also stands for all
                                              // missing bits.
};

extern const PlaneTables kPlaneTables;
extern const PlaneOrders kPlaneOrders;

}  // namespace narrowcast::cpu

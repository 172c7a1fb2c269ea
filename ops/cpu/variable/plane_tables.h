// The constants of bit_planes-inl.h. They are in a file of their own so that the compiler does not know them: what it
// knows it makes anew for every block, in as many instructions as all else takes.
#pragma once

#include <cstdint>

namespace narrowcast::cpu {

struct PlaneTables {
  uint64_t masks[3];        // The bits that each of the three exchanges moves up.
  uint64_t diagonal;        // Bit i of byte i: a square that is multiplied by it stays what it is.
  uint8_t reversed[16];     // 8 bytes of either half from the last to the first.
  uint32_t quads[16];       // The first words, of 4 bytes, of all 16 bytes, and then the second ones; 8 count.
  uint64_t quarters[4];     // A block's 8-byte quarters with the middle ones exchanged.
  uint8_t by_plane[16];     // From elements to planes: 8 bytes of either half by turns, the last ones first.
  uint8_t join_halves[16];  // Then two bytes of either half by turns.
  uint8_t part_halves[16];  // The inverse of join_halves,
  uint8_t by_element[16];   // and of by_plane.
};

// All that goes before a product of matrices of bits, or after it, as one order of the 32 bytes of a vector, or of 32
// of two wider ones. Rows are 8 bytes each from the last to the first. Planes are those of codes of so many bits, 8 at
// most.
struct PlaneOrders {
  alignas(64) uint8_t rows_of_codes[64];      // From the low bytes of the 16 words of two vectors; 32 count.
  alignas(32) uint8_t planes_of_rows[9][32];  // To the first planes, what is behind them being anything.
  alignas(32) uint8_t rows_of_planes[9][32];  // From the first planes, whose first one is that of all missing bits.
};

extern const PlaneTables kPlaneTables;
extern const PlaneOrders kPlaneOrders;

}  // namespace narrowcast::cpu

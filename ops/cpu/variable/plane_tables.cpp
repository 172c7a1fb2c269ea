#include "ops/cpu/variable/plane_tables.h"

#include <algorithm>

namespace narrowcast::cpu {
namespace {

constexpr PlaneTables kTables{.masks = {0x00AA00AA00AA00AAU, 0x0000CCCC0000CCCCU, 0x00000000F0F0F0F0U},
                              .diagonal = 0x8040201008040201U,
                              .reversed = {7, 6, 5, 4, 3, 2, 1, 0, 15, 14, 13, 12, 11, 10, 9, 8},
                              .quads = {0, 4, 8, 12, 1, 5, 9, 13},
                              .quarters = {0, 2, 1, 3},
                              .by_plane = {7, 15, 6, 14, 5, 13, 4, 12, 3, 11, 2, 10, 1, 9, 0, 8},
                              .join_halves = {0, 1, 8, 9, 2, 3, 10, 11, 4, 5, 12, 13, 6, 7, 14, 15},
                              .part_halves = {0, 1, 4, 5, 8, 9, 12, 13, 2, 3, 6, 7, 10, 11, 14, 15},
                              .by_element = {14, 12, 10, 8, 6, 4, 2, 0, 15, 13, 11, 9, 7, 5, 3, 1}};

// The source index of byte i of a vector, if the bytes of each half, or the quarters, are permuted by `order`.
constexpr int of_bytes(const uint8_t (&order)[16], int i) { return i / 16 * 16 + order[i % 16]; }
constexpr int of_quarters(const uint64_t (&order)[4], int i) { return static_cast<int>(order[i / 8]) * 8 + i % 8; }

constexpr PlaneOrders make_orders() {
  PlaneOrders orders{};
  for (int i = 0; i < 32; ++i) {
    orders.rows_of_codes[i] = static_cast<uint8_t>(4 * of_bytes(kTables.reversed, i));
    for (int width = 0; width <= 8; ++width) {
      const int missing = 8 - width;
      const int plane = std::min(i / 4 + missing, 7);
      const int joined = of_quarters(kTables.quarters, of_bytes(kTables.join_halves, plane * 4 + i % 4));
      orders.planes_of_rows[width][i] = static_cast<uint8_t>(of_bytes(kTables.by_plane, joined));
      const int element = of_bytes(kTables.by_element, of_bytes(kTables.reversed, i));
      const int parted = of_bytes(kTables.part_halves, of_quarters(kTables.quarters, element));
      orders.rows_of_planes[width][i] = static_cast<uint8_t>(std::max(parted / 4 - missing, 0) * 4 + parted % 4);
    }
  }
  return orders;
}

}  // namespace

constinit const PlaneTables kPlaneTables = kTables;
constinit const PlaneOrders kPlaneOrders = make_orders();

}  // namespace narrowcast::cpu

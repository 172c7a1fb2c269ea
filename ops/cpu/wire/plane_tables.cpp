#include "ops/cpu/wire/plane_tables.h"

namespace narrowcast::cpu {

const PlaneTables kPlaneTables{.masks = {0x00AA00AA00AA00AAU, 0x0000CCCC0000CCCCU, 0x00000000F0F0F0F0U},
                               .diagonal = 0x8040201008040201U,
                               .reversed = {7, 6, 5, 4, 3, 2, 1, 0, 15, 14, 13, 12, 11, 10, 9, 8},
                               .quads = {0, 2, 4, 6, 1, 3, 5, 7},
                               .quarters = {0, 2, 1, 3},
                               .by_plane = {7, 15, 6, 14, 5, 13, 4, 12, 3, 11, 2, 10, 1, 9, 0, 8},
                               .join_halves = {0, 1, 8, 9, 2, 3, 10, 11, 4, 5, 12, 13, 6, 7, 14, 15},
                               .part_halves = {0, 1, 4, 5, 8, 9, 12, 13, 2, 3, 6, 7, 10, 11, 14, 15},
                               .by_element = {14, 12, 10, 8, 6, 4, 2, 0, 15, 13, 11, 9, 7, 5, 3, 1}};

}  // namespace narrowcast::cpu

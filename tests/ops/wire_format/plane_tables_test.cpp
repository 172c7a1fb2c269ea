// The tables, used as the kernels of each instruction set use them. So those of processors with GFNI are tested on any
// processor.
#include "ops/cpu/variable/plane_tables.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <array>
#include <cstdint>
#include <cstring>
#include <random>

#include "ops/codec/variable_width.h"

namespace narrowcast::cpu {
namespace {

using codec::wire::variable_code_at;
using PlaneBlock = std::array<uint8_t, 32>;

PlaneBlock random_block(uint32_t seed) {
  std::mt19937 numbers(seed);
  PlaneBlock block{};
  for (uint8_t& byte : block) byte = static_cast<uint8_t>(numbers());
  return block;
}

// Planes of codes of `width` bits: word p holds bit width - 1 - p of all codes, and further words are 0.
PlaneBlock planes_of(const PlaneBlock& codes, int width) {
  PlaneBlock planes{};
  for (int plane = 0; plane < width; ++plane) {
    for (int k = 0; k < 32; ++k) {
      const int bit = codes[k] >> (width - 1 - plane) & 1;
      planes[plane * 4 + k / 8] = static_cast<uint8_t>(planes[plane * 4 + k / 8] | bit << (k % 8));
    }
  }
  return planes;
}

template <class Places>
PlaneBlock permuted(const PlaneBlock& bytes, const Places& place) {
  PlaneBlock result{};
  for (int i = 0; i < 32; ++i) result[i] = bytes.at(place(i));
  return result;
}

// The same permutation of 16 bytes, or of 8-byte quarters.
PlaneBlock in_halves(const PlaneBlock& bytes, const uint8_t (&order)[16]) {
  return permuted(bytes, [&](int i) { return i / 16 * 16 + order[i % 16]; });
}
PlaneBlock in_quarters(const PlaneBlock& bytes) {
  return permuted(bytes, [](int i) { return kPlaneTables.quarters[i / 8] * 8 + i % 8; });
}

// Transposes each 8 by 8 bits as processors without GFNI do: by three exchanges.
PlaneBlock transposed_by_masks(const PlaneBlock& block) {
  PlaneBlock result{};
  constexpr int kDistances[] = {7, 14, 28};
  for (int square = 0; square < 4; ++square) {
    uint64_t x = 0;
    std::memcpy(&x, block.data() + 8 * square, sizeof(x));
    for (int i = 0; i < 3; ++i) {
      const uint64_t different = (x ^ x >> kDistances[i]) & kPlaneTables.masks[i];
      x ^= different ^ different << kDistances[i];
    }
    std::memcpy(result.data() + 8 * square, &x, sizeof(x));
  }
  return result;
}

// The instruction gf2p8affineqb with the identity as its first factor: bit j of byte i is the parity of byte i of the
// first factor AND byte 7 - j of the second.
PlaneBlock transposed_by_product(const PlaneBlock& rows) {
  std::array<uint8_t, 8> diagonal{};
  std::memcpy(diagonal.data(), &kPlaneTables.diagonal, sizeof(kPlaneTables.diagonal));
  PlaneBlock result{};
  for (int i = 0; i < 32; ++i) {
    for (int j = 0; j < 8; ++j) {
      const int common = diagonal[i % 8] & rows[i / 8 * 8 + 7 - j];
      result[i] = static_cast<uint8_t>(result[i] | (__builtin_popcount(common) & 1) << j);
    }
  }
  return result;
}

TEST(PlaneTablesTest, TheMasksTransposeSquaresOfBits) {
  const PlaneBlock block = random_block(1);
  const PlaneBlock result = transposed_by_masks(block);
  for (int i = 0; i < 32; ++i) {
    for (int j = 0; j < 8; ++j) EXPECT_EQ(result[i] >> j & 1, block[i / 8 * 8 + j] >> (i % 8) & 1) << i << " " << j;
  }
}

TEST(PlaneTablesTest, OrdersOfHalvesLeadToPlanesAndBack) {
  const PlaneBlock bytes = random_block(2);
  const PlaneBlock planes =
      in_halves(in_quarters(in_halves(transposed_by_masks(bytes), kPlaneTables.by_plane)), kPlaneTables.join_halves);
  EXPECT_EQ(planes, planes_of(bytes, 8));
  const PlaneBlock parted = in_quarters(in_halves(planes, kPlaneTables.part_halves));
  EXPECT_EQ(transposed_by_masks(in_halves(parted, kPlaneTables.by_element)), bytes);
}

TEST(PlaneTablesTest, QuadsGatherTheFirstWordsOfEachSixteenBytes) {
  for (uint32_t i = 0; i < 8; ++i) EXPECT_EQ(kPlaneTables.quads[i], i % 4 * 4 + i / 4);
}

// Codes are words, of whose low bytes a product takes each 8 in reverse order.
PlaneBlock rows_of(const PlaneBlock& codes) {
  std::array<uint8_t, 128> words{};
  for (int i = 0; i < 32; ++i) words[4 * i] = codes[i];
  PlaneBlock rows{};
  for (int i = 0; i < 32; ++i) rows[i] = words.at(kPlaneOrders.rows_of_codes[i]);
  return rows;
}

TEST(PlaneOrdersTest, AProductOfCodesHasTheirPlanes) {
  for (int width = 0; width <= 8; ++width) {
    const PlaneBlock codes = random_block(static_cast<uint32_t>(width));
    const PlaneBlock product = transposed_by_product(rows_of(codes));
    const PlaneBlock planes = permuted(product, [&](int i) { return kPlaneOrders.planes_of_rows[width][i]; });
    const PlaneBlock expected = planes_of(codes, width);
    EXPECT_TRUE(std::equal(planes.begin(), planes.begin() + 4 * width, expected.begin())) << width << " bits";
  }
}

// The bytes after a block's planes are those of the next one.
TEST(PlaneOrdersTest, AProductOfPlanesHasTheCodesWithTheirSigns) {
  for (int width = 1; width <= 8; ++width) {
    const PlaneBlock words = random_block(static_cast<uint32_t>(100 + width));
    const PlaneBlock rows = permuted(words, [&](int i) { return kPlaneOrders.rows_of_planes[width][i]; });
    const PlaneBlock bytes = transposed_by_product(rows);
    for (int k = 0; k < 32; ++k) {
      EXPECT_EQ(static_cast<int8_t>(bytes[k]), variable_code_at(words.data(), static_cast<uint32_t>(width), k))
          << "code " << k << " of " << width << " bits";
    }
  }
}

}  // namespace
}  // namespace narrowcast::cpu

// What the tests of variable formats encode.
#pragma once

#include <cmath>
#include <cstdint>
#include <limits>
#include <random>
#include <string>
#include <utility>
#include <vector>

#include "ops/codec/host_device.h"
#include "ops/codec/wire_rounding.h"
#include "tests/support/sanitized.h"

namespace narrowcast::test {

using Floats = std::vector<float>;
using Bytes = std::vector<uint8_t>;

inline const codec::wire::Rounding kAtRandom{true, 0x0123456789ABCDEF, uint64_t{1} << 40, 0xFFFFFFFFFE};

inline constexpr int64_t kLengths[] = {0, 1, 7, 31, 32, 33, 63, 64, 65, 96, 97, 1023, 1024, 1025, 3000};
inline constexpr float kInf = std::numeric_limits<float>::infinity();
inline constexpr float kGreatestBfloat16 = 0x1.FEp127F;  // Of bfloat16.

inline Floats generate(int64_t n, const auto& value) {
  Floats x;
  for (int64_t i = 0; i < n; ++i) x.push_back(value(i));
  return x;
}

// Of blocks of which every ninth is large, and the others are up to 2^80 times smaller.
inline float size_of_faint(int64_t block) {
  return block % 9 == 4 ? 1.0F : std::ldexp(1.0F, -static_cast<int>(block * 11 % 80));
}

// Blocks whose largest elements are whole quarters of an octave or float32 beside them, down to 2^-70 and so to far
// beyond what a header can say: every eighth is large.
inline float about_a_quarter(int64_t i) {
  const int64_t block = i / 32;
  if (block % 8 == 7) return i % 2 == 0 ? 1.0F : -0.3F;
  const float quarter = std::ldexp(static_cast<float>(4 + block % 4), -static_cast<int>(block * 5 % 70));
  const auto bits = codec::float_bits(quarter) + static_cast<uint32_t>(block % 3) - 1;
  const float magnitude = std::ldexp(codec::float_of_bits(bits), -static_cast<int>(i % 3));
  return i % 5 == 0 ? -magnitude : magnitude;
}

// Blocks from twice the least step down to a quarter of it, and so to below what a faint block can have.
inline float about_the_least_step(int64_t i) {
  const float largest = std::ldexp(1 + static_cast<float>(i / 32 % 5) / 4, -99 - static_cast<int>(i / 32 % 4));
  return i % 7 == 0 ? largest : -largest / static_cast<float>(1 + i % 3);
}

// Blocks whose largest codes have 14 digits, 13 and so on, then a faint block, and zeros. Of a random word.
inline float of_all_widths(int64_t i, uint32_t random) {
  constexpr int64_t kBlocks = 15;
  const auto block = static_cast<int>(i / 32);
  if (block >= kBlocks) return 0;
  const float largest = block == kBlocks - 1 ? 0x1p-20F : std::ldexp(1.0F, -block);
  if (i % 32 == 0) return -largest;
  return largest * std::ldexp(static_cast<float>(random % 255) - 127, -7 - static_cast<int>(i % 6));
}

// The first block gives 3000 elements the step 0x1.02p-14, as no code is above 16383. In those behind it the largest
// element is the most, to nearest or at random, that has a code of the block's width over a step that a header can say,
// or the float32 below, or the one above what it is over the next such step: faint ones of all distances, and then some
// with codes of 3 bits.
inline float about_headers(int64_t i) {
  const int64_t block = i / 32;
  if (block == 0) return i % 2 == 0 ? 1.0F : -0.3F;
  constexpr int64_t kFaint = 32;
  constexpr int64_t kHeaders = kFaint + 16;
  const int64_t header = block % kHeaders;
  const bool is_faint = header < kFaint;
  const auto beside = static_cast<uint32_t>((block + block / 3) % 3);
  const auto parts = static_cast<uint32_t>(is_faint ? header : header - kFaint) + beside / 2;
  const float step = codec::float_of_bits(codec::float_bits(0x1.02p-14F) - (parts << (is_faint ? 21 : 19)));
  const float most = (is_faint ? 2.0F : 4.0F) - (block / kHeaders % 2 == 0 ? 0x1.08p-1F : 0x1.04p0F);
  const float largest = codec::float_of_bits(codec::float_bits(step * most) + beside - 1);
  return (i % 3 == 0 ? -largest : largest) / static_cast<float>(1 + i % 5);
}

// Arrays of one length, by what is difficult about them.
inline std::vector<std::pair<std::string, Floats>> all_variable_inputs(int64_t n) {
  std::mt19937 engine(static_cast<uint32_t>(n) + 1);
  std::normal_distribution<float> normal;
  const auto random = [&](auto scale) { return generate(n, [&](int64_t i) { return normal(engine) * scale(i); }); };
  return {{"normal", random([](int64_t) { return 1e-3F; })},
          {"blocks of different size",
           random([](int64_t i) { return std::ldexp(1.0F, static_cast<int>(i / 32 * 7 % 23)); })},
          {"zeros of both signs", generate(n, [](int64_t i) { return i % 2 == 0 ? 0.0F : -0.0F; })},
          {"one large among zeros", generate(n, [&](int64_t i) { return i == n / 2 ? -3.7F : 0.0F; })},
          {"one large among small", random([&](int64_t i) { return i == n / 3 ? 1e6F : 1.0F; })},
          {"constant", generate(n, [](int64_t) { return 0.3F; })},
          {"alternating",
           generate(n, [](int64_t i) { return (i % 2 == 0 ? 1.0F : -1e-4F) * (i / 32 % 2 == 0 ? 1.0F : 1e-5F); })},
          {"subnormal", random([](int64_t) { return 0x1p-140F; })},
          {"about the least step", random([](int64_t) { return 0x1p-99F; })},
          {"greatest", generate(n,
                                [](int64_t i) {
                                  return i % 3 == 0 ? -kGreatestBfloat16
                                                    : kGreatestBfloat16 / static_cast<float>(1 + i % 5);
                                })},
          {"ties", generate(n, [](int64_t i) { return i == 0 ? 7.0F : 0.5F * static_cast<float>(i % 15 - 7); })},
          {"greatest everywhere", generate(n, [](int64_t) { return kGreatestBfloat16; })},
          {"faint blocks", random([](int64_t i) { return size_of_faint(i / 32); })},
          {"faint blocks about quarters of an octave", generate(n, [](int64_t i) { return about_a_quarter(i); })},
          {"wide codes", random([](int64_t i) { return i / 32 % 9 == 0 ? std::ldexp(1.0F, -(i / 288 % 8)) : 0.0F; })},
          {"few large elements",
           random([](int64_t i) { return i / 32 % 2 == 0 ? 3.0F : (i % 32 == i / 64 % 32 ? 1.0F : 0.03F); })},
          {"faint at the least step", generate(n, [](int64_t i) { return about_the_least_step(i); })},
          {"all widths", generate(n, [&](int64_t i) { return of_all_widths(i, engine()); })},
          {"about the limits of headers", generate(n, [](int64_t i) { return about_headers(i); })}};
}

// Under sanitizers some of them, others at each call.
inline std::vector<std::pair<std::string, Floats>> variable_inputs(int64_t n) {
  return some_of(all_variable_inputs(n));
}

}  // namespace narrowcast::test

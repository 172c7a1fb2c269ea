// Inputs for the tests of variable formats.
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
inline constexpr float kGreatestMagnitude = 0x1.FAp127F;  // Largest one in messages that are not NaN.

inline Floats generate(int64_t n, const auto& value) {
  Floats x;
  for (int64_t i = 0; i < n; ++i) x.push_back(value(i));
  return x;
}

// The magnitude of blocks of which every ninth is large, and the others are up to 2^80 times smaller.
inline float size_of_faint(int64_t block) {
  return block % 9 == 4 ? 1.0F : std::ldexp(1.0F, -static_cast<int>(block * 11 % 80));
}

// Blocks whose largest elements are whole quarters of an octave or float32 next to them, down to 2^-70 and so far below
// the range of a header. Every eighth block is large.
inline float about_a_quarter(int64_t i) {
  const int64_t block = i / 32;
  if (block % 8 == 7) return i % 2 == 0 ? 1.0F : -0.3F;
  const float quarter = std::ldexp(static_cast<float>(4 + block % 4), -static_cast<int>(block * 5 % 70));
  const auto bits = codec::float_bits(quarter) + static_cast<uint32_t>(block % 3) - 1;
  const float magnitude = std::ldexp(codec::float_of_bits(bits), -static_cast<int>(i % 3));
  return i % 5 == 0 ? -magnitude : magnitude;
}

// Blocks from twice the least step down to a quarter of it, and so below the range of a faint block.
inline float about_the_least_step(int64_t i) {
  const float largest = std::ldexp(1 + static_cast<float>(i / 32 % 5) / 4, -99 - static_cast<int>(i / 32 % 4));
  return i % 7 == 0 ? largest : -largest / static_cast<float>(1 + i % 3);
}

// Blocks with widths 15, 14 and so on, then a faint block, and zeros. Numbers depend on a random word.
inline float of_all_widths(int64_t i, uint32_t random) {
  constexpr int64_t kBlocks = 15;
  const auto block = static_cast<int>(i / 32);
  if (block >= kBlocks) return 0;
  const float largest = block == kBlocks - 1 ? 0x1p-20F : std::ldexp(1.0F, -block);
  if (i % 32 == 0) return -largest;
  return largest * std::ldexp(static_cast<float>(random % 255) - 127, -7 - static_cast<int>(i % 6));
}

// The largest bfloat16 over a step that gives a block some header, or a float32 next to it, on the side of the larger
// numbers and on the other side.
struct HeaderLimit {
  float larger = 0;
  float smaller = 0;
  bool larger_is_positive = false;

  // The headers that a message can have whose largest number gives it kStep: faint ones, all of 3 to 8 bits, and one
  // for each width from 9 to 14 bits.
  static constexpr int64_t kHeaders = 56 + 160 + 16 + 6;
  static constexpr int64_t kVariations = 2 * 4 * 3;
  static constexpr float kStep = 0x1.02p-14F;  // For a message whose largest number is 1: no code is above 16383.

  static uint32_t header(int64_t number) {
    const auto h = static_cast<uint32_t>(number);
    if (h < 216) return 8 + h;
    return h < 232 ? 224 + (h - 216) / 2 * 4 + h % 2 : h - 231;
  }

  // Rounds to nearest or at random. Both sides are at the limit, or the larger one with half of the other or nothing on
  // the other side, or the smaller one. Each is the float32 below the limit, the limit, or the float32 above.
  static HeaderLimit of(uint32_t header, int64_t variation) {
    const double reach = (variation % 2 == 0 ? 0.5 : 0) - 1.0 / 128;
    const int64_t kind = variation / 2 % 4;
    const auto beside = static_cast<uint32_t>(variation / 8 % 3);
    const uint32_t width = header < 8 ? 8 + header : header < 64 ? 2 : header / 32 + 1;
    const double half = std::ldexp(1, static_cast<int>(width) - 1);
    const double zero_point = header >= 64 && header / 2 % 2 == 1 ? half / 4 : 0;
    const double less = kind == 2 ? (zero_point > 0 ? zero_point / 2 : 0.5) : 0;
    const double step = step_of(header);
    const double larger = step * (half + zero_point - less + reach - (header < 8 ? 1 : 0));
    const double smaller = step * (half - 1 - zero_point + reach) * (kind == 1 ? 0.5 : kind == 3 ? 0 : 1);
    return {beside_bfloat16(larger, kind == 2 ? 1 : beside), beside_bfloat16(smaller, kind == 2 ? beside : 1),
            header % 2 == 1};
  }

 private:
  static double step_of(uint32_t header) {
    const uint32_t eighths = header < 8 ? 0 : header < 64 ? (header - 8) / 2 * 2 : header / 4 % 8;
    return codec::float_of_bits(codec::float_bits(kStep) - (eighths << 20));
  }

  // The greatest bfloat16 that is at most the number, or the float32 below or above it.
  static float beside_bfloat16(double number, uint32_t beside) {
    const uint32_t bits = codec::float_bits(static_cast<float>(number)) & 0xFFFF0000U;
    return codec::float_of_bits(bits == 0 ? 0 : bits + beside - 1);
  }
};

// Two of five blocks are near the limits of a header, each time of a different one. The others are zeros, so that there
// is room also with 3 bits per element.
inline float about_headers(int64_t i, int64_t first) {
  const int64_t block = i / 32;
  const int64_t element = i % 32;
  if (block == 0) return element % 2 == 0 ? 1.0F : -0.3F;
  if (block % 5 % 2 == 0) return 0;
  const int64_t turn = block / 5 * 2 + block % 5 / 2 + first;
  const HeaderLimit limit = HeaderLimit::of(HeaderLimit::header(turn * 47 % HeaderLimit::kHeaders),
                                            (turn + turn / HeaderLimit::kHeaders) % HeaderLimit::kVariations);
  const float sign = limit.larger_is_positive == (element % 2 == 0) ? 1.0F : -1.0F;
  return sign * (element % 2 == 0 ? limit.larger : limit.smaller) / static_cast<float>(1 + element / 2 % 7);
}

// With each variation of the limits of all headers.
inline Floats about_all_headers() {
  constexpr int64_t kBlocks = HeaderLimit::kHeaders * HeaderLimit::kVariations * 5 / 2;
  return generate(32 * kBlocks, [](int64_t i) { return about_headers(i, 0); });
}

// Blocks that reach to one side, and 0 to 5 fifths as far to the other side, made from one number.
inline float to_one_side(int64_t i, float number) {
  const int64_t block = i / 32;
  const float part = i % 2 == 0 ? 1.0F : -static_cast<float>(block % 6) / 5;
  const float magnitude = std::ldexp(std::abs(number), -static_cast<int>(block * 3 % 8));
  return (block % 4 < 2 ? part : -part) * magnitude;
}

// Blocks that reach equally far to both sides.
inline float to_both_sides(int64_t i) {
  const float magnitude = std::ldexp(static_cast<float>(17 + i / 2 % 16), -static_cast<int>(i / 32 * 3 % 8));
  return i % 2 == 0 ? magnitude : -magnitude;
}

// Arrays of one length, named by their difficulty.
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
                                  return i % 3 == 0 ? -kGreatestMagnitude
                                                    : kGreatestMagnitude / static_cast<float>(1 + i % 5);
                                })},
          {"ties", generate(n, [](int64_t i) { return i == 0 ? 7.0F : 0.5F * static_cast<float>(i % 15 - 7); })},
          {"greatest everywhere", generate(n, [](int64_t) { return kGreatestMagnitude; })},
          {"faint blocks", random([](int64_t i) { return size_of_faint(i / 32); })},
          {"faint blocks about quarters of an octave", generate(n, [](int64_t i) { return about_a_quarter(i); })},
          {"wide codes", random([](int64_t i) { return i / 32 % 9 == 0 ? std::ldexp(1.0F, -(i / 288 % 8)) : 0.0F; })},
          {"few large elements",
           random([](int64_t i) { return i / 32 % 2 == 0 ? 3.0F : (i % 32 == i / 64 % 32 ? 1.0F : 0.03F); })},
          {"faint at the least step", generate(n, [](int64_t i) { return about_the_least_step(i); })},
          {"all widths", generate(n, [&](int64_t i) { return of_all_widths(i, engine()); })},
          {"about the limits of headers", generate(n, [&](int64_t i) { return about_headers(i, n); })},
          {"farther to one side", generate(n, [&](int64_t i) { return to_one_side(i, normal(engine)); })},
          {"as far to either side", generate(n, [](int64_t i) { return to_both_sides(i); })}};
}

// The same inputs; under sanitizers only some of them, different ones at each call.
inline std::vector<std::pair<std::string, Floats>> variable_inputs(int64_t n) {
  return some_of(all_variable_inputs(n));
}

}  // namespace narrowcast::test

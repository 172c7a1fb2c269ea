// What the tests of variable formats encode.
#pragma once

#include <cmath>
#include <cstdint>
#include <random>
#include <string>
#include <utility>
#include <vector>

#include "ops/codec/wire_rounding.h"
#include "tests/support/sanitized.h"

namespace narrowcast::test {

using Floats = std::vector<float>;
using Bytes = std::vector<uint8_t>;

inline const codec::wire::Rounding kAtRandom{true, 0x0123456789ABCDEF, uint64_t{1} << 40, 0xFFFFFFFFFE};

inline constexpr int64_t kLengths[] = {0, 1, 7, 31, 32, 33, 63, 64, 65, 96, 97, 1023, 1024, 1025, 3000};
inline constexpr float kGreatestBfloat16 = 0x1.FEp127F;  // Of bfloat16.

inline Floats generate(int64_t n, const auto& value) {
  Floats x;
  for (int64_t i = 0; i < n; ++i) x.push_back(value(i));
  return x;
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
          {"ties", generate(n, [](int64_t i) { return i == 0 ? 7.0F : 0.5F * static_cast<float>(i % 15 - 7); })}};
}

// Under sanitizers some of them, others at each call.
inline std::vector<std::pair<std::string, Floats>> variable_inputs(int64_t n) {
  return some_of(all_variable_inputs(n));
}

}  // namespace narrowcast::test

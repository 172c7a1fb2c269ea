// Steps, and blocks for them, for tests of widths and headers.
#pragma once

#include <cstdint>

#include "ops/codec/host_device.h"
#include "ops/codec/variable_headers.h"
#include "ops/codec/wire_scale.h"
#include "tests/ops/wire_format/variable_model.h"

namespace narrowcast::test {

// The largest numbers of a block over a step, on the side that reaches farther and on the other, and the expected
// result.
struct SidesCase {
  float larger;
  float smaller;
  uint32_t expected;
};

inline codec::wire::StepCodes codes_of(uint32_t step, bool stochastic) {
  return codec::wire::StepCodes::of(static_cast<uint16_t>(step), {.stochastic = stochastic});
}

inline ModelStep model_of(const codec::wire::StepCodes& codes) {
  return {codec::wire::scale_value(codes.step), codes.stochastic};
}

inline uint32_t bfloat16_bits(float step) { return codec::float_bits(step) >> 16; }

// The codes of a step of 1.
inline codec::wire::StepCodes codes_of_one(bool stochastic) { return codes_of(bfloat16_bits(1), stochastic); }

inline float bfloat16_down(double number) {
  return codec::float_of_bits(codec::float_bits(static_cast<float>(number)) & 0xFFFF0000U);
}

// The extent of numbers from -negative to positive.
inline codec::wire::BlockExtent sides_of(float negative, float positive) {
  return codec::wire::BlockExtent::of(codec::float_bits(positive), codec::float_bits(negative));
}

inline bool has_code(const codec::wire::StepCodes& step, codec::wire::BlockExtent extent) {
  return step.has_code(codec::float_of_bits(extent.larger()) * step.inverse);
}

}  // namespace narrowcast::test

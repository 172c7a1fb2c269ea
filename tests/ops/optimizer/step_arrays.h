// Arrays to step, and the steps' formulas (ops/cpu/optimizer/step_kernels.h) for one element after the other.
#pragma once

#include <ATen/ops/randn.h>
#include <gtest/gtest.h>

#include <cmath>
#include <cstdint>
#include <cstring>
#include <string>
#include <utility>
#include <vector>

#include "ops/cpu/optimizer/step_kernels.h"

namespace narrowcast::test {

using Floats = std::vector<float>;

inline Floats random_floats(int64_t n, float scale = 1) {
  const at::Tensor values = at::randn({n}).mul_(scale);
  const float* const data = values.const_data_ptr<float>();
  return {data, data + n};
}

// Parameters, gradients and both moments, or the first of them as SGD's momenta.
struct StepArrays {
  Floats parameters;
  Floats gradients;
  Floats first;
  Floats second;

  cpu::AdamWArrays adamw(int64_t begin, int64_t n) {
    return {parameters.data() + begin, gradients.data() + begin, first.data() + begin, second.data() + begin, n};
  }
  cpu::SgdArrays sgd(int64_t begin, int64_t n) {
    return {parameters.data() + begin, gradients.data() + begin, first.data() + begin, n};
  }
  int64_t size() const { return static_cast<int64_t>(parameters.size()); }
};

inline StepArrays random_arrays(int64_t n, float scale = 1) {
  StepArrays arrays{random_floats(n), random_floats(n, scale), random_floats(n, scale), random_floats(n, scale)};
  for (float& square : arrays.second) square *= square;
  return arrays;
}

// Equal bits. The bits of a NaN are unspecified.
inline void expect_same_floats(const Floats& actual, const Floats& expected, const std::string& what) {
  ASSERT_EQ(actual.size(), expected.size()) << what;
  for (size_t i = 0; i < actual.size(); ++i) {
    if (std::isnan(expected[i])) {
      EXPECT_TRUE(std::isnan(actual[i])) << what << " " << i;
    } else {
      ASSERT_EQ(std::memcmp(&actual[i], &expected[i], sizeof(float)), 0)
          << what << " " << i << ": " << actual[i] << " instead of " << expected[i];
    }
  }
}

inline void expect_same_arrays(const StepArrays& actual, const StepArrays& expected) {
  expect_same_floats(actual.parameters, expected.parameters, "parameter");
  expect_same_floats(actual.gradients, expected.gradients, "gradient");
  expect_same_floats(actual.first, expected.first, "first moment");
  expect_same_floats(actual.second, expected.second, "second moment");
}

inline float plain_flush(float value) { return std::fabs(value) < 0x1p-126F ? 0 : value; }

inline void plain_step(const cpu::AdamWFactors& f, const cpu::AdamWArrays& a) {
  for (int64_t i = 0; i < a.n; ++i) {
    const float x = a.parameters[i];
    const float g = f.gradient_scale * a.gradients[i];
    const float m = plain_flush(f.beta1 * a.averages[i] + f.rest_of_beta1 * g);
    const float v = plain_flush(f.beta2 * a.squares[i] + (f.rest_of_beta2 * g) * g);
    a.averages[i] = m;
    a.squares[i] = v;
    a.parameters[i] = x - (f.rate * (m / (std::sqrt(v) + f.epsilon)) + f.decay * x);
  }
}

inline void plain_step(const cpu::SgdFactors& f, const cpu::SgdArrays& a) {
  for (int64_t i = 0; i < a.n; ++i) {
    const float x = a.parameters[i];
    const float d = f.gradient_scale * a.gradients[i] + f.decay * x;
    float direction = d;
    if (a.momenta != nullptr) {
      const float b = plain_flush(f.momentum * a.momenta[i] + f.share * d);
      a.momenta[i] = b;
      direction = f.nesterov ? d + f.momentum * b : b;
    }
    a.parameters[i] = x - f.rate * direction;
  }
}

}  // namespace narrowcast::test

// Small arrays and the results of PyTorch 2.11's choose_qparams_per_tensor and quantize_per_tensor.
#pragma once

#include <cstdint>
#include <limits>
#include <string>
#include <vector>

namespace narrowcast::test {

struct AffineUint8Row {
  std::string name;
  std::vector<float> values;
  float scale;
  int32_t zero_point;
  std::vector<int> codes;
};

inline std::vector<AffineUint8Row> affine_uint8_table() {
  constexpr float kInf = std::numeric_limits<float>::infinity();
  constexpr float kMax = std::numeric_limits<float>::max();
  return {{"zeros", {0, 0, 0}, 0x1p-23F, 0, {0, 0, 0}},
          {"positive", {2, 3}, 0x1.818182p-7F, 0, {170, 255}},
          {"negative", {-2, -3}, 0x1.818182p-7F, 255, {85, 0}},
          {"halves", {-1, 0, 1, .5F, -.5F}, 0x1.010102p-7F, 127, {0, 127, 254, 191, 63}},
          {"unequal", {-1, 0, 2}, 0x1.818182p-7F, 85, {0, 85, 255}},
          {"tenths", {-.3F, .1F, .7F}, 0x1.010102p-8F, 76, {0, 101, 254}},
          {"below_eps", {5e-8F, -5e-8F}, 0x1p-23F, 0, {0, 0}},
          {"negative_zero", {-0.0F, 0.0F}, 0x1p-23F, 0, {0, 0}},
          {"infinite", {1, kInf, -2}, kInf, 0, {0, 0, 0}},
          {"negative_infinite", {1, -kInf}, kInf, 0, {0, 0}},
          {"range_overflows", {kMax, -kMax}, kInf, 0, {0, 0}}};
}

}  // namespace narrowcast::test

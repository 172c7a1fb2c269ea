// Defaults of LearningRateOptions, which are shares of the peak or of the steps.
#pragma once

#include <cstdint>

namespace narrowcast {

// The share 1 / divisor, and its name in help texts.
struct DefaultShare {
  int64_t divisor;
  const char* text;
};

inline constexpr DefaultShare kMinimumOfPeak = {10, "a tenth"};
inline constexpr DefaultShare kWarmupOfSteps = {20, "a twentieth"};
inline constexpr DefaultShare kDecayOfSteps = {5, "a fifth"};

}  // namespace narrowcast

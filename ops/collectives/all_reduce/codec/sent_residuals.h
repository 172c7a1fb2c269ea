// Residuals of the elements of a message on the CPU.
#pragma once

#include <cmath>
#include <cstdint>

namespace narrowcast::collectives {

// The residual from element `first` on, or null.
inline float* from(float* residual, int64_t first) { return residual == nullptr ? nullptr : residual + first; }

// values += residual, if it is not null.
inline void add(const float* residual, int64_t n, float* values) {
  for (int64_t i = 0; residual != nullptr && i < n; ++i) {
    values[i] += residual[i];
  }
}

// If the message is not finite they stay unchanged.
struct SentResiduals {
  float* kept = nullptr;   // Null, or replaced by the rounding error.
  float* spent = nullptr;  // Null, or replaced by 0.

  bool are_none() const { return kept == nullptr && spent == nullptr; }
  SentResiduals at(int64_t first) const { return {from(kept, first), from(spent, first)}; }

  // After n elements were sent. `lacking` has their decoded values, and is overwritten.
  void update(const float* sent, int64_t n, float* lacking) const {
    for (int64_t i = 0; i < n; ++i) {
      lacking[i] = sent[i] - lacking[i];
    }
    if (kept != nullptr) {
      for (int64_t i = 0; i < n; ++i) {
        kept[i] = std::isfinite(lacking[i]) ? lacking[i] : kept[i];
      }
    }
    if (spent != nullptr) {
      for (int64_t i = 0; i < n; ++i) {
        spent[i] = std::isfinite(lacking[i]) ? 0.0F : spent[i];
      }
    }
  }
};

}  // namespace narrowcast::collectives

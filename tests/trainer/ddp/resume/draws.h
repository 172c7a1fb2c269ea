// Random choices that depend only on a seed.
#pragma once

#include <cstdint>
#include <random>
#include <vector>

namespace narrowcast::testing {

// It does not use the distributions of <random>, which may differ between standard libraries: a seed must name one
// case.
class Draws {
 public:
  explicit Draws(uint64_t seed) : engine_(seed) {}

  // A number in first..last.
  int64_t in(int64_t first, int64_t last) {
    return first + static_cast<int64_t>(engine_() % static_cast<uint64_t>(last - first + 1));
  }

  // True once in `times` draws on average.
  bool once_in(int64_t times) { return in(1, times) == 1; }

  // One of the values; there is at least one.
  template <class T>
  T one_of(const std::vector<T>& values) {
    return values.at(static_cast<size_t>(in(0, static_cast<int64_t>(values.size()) - 1)));
  }

 private:
  std::mt19937_64 engine_;
};

}  // namespace narrowcast::testing

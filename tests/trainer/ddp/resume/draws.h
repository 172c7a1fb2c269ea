// Random choices that depend on a seed alone.
#pragma once

#include <cstdint>
#include <random>
#include <vector>

namespace narrowcast::testing {

// Not the distributions of <random>: those may differ between standard libraries, and a seed must name one case.
class Draws {
 public:
  explicit Draws(uint64_t seed) : engine_(seed) {}

  // A number in first..last.
  int64_t in(int64_t first, int64_t last) {
    return first + static_cast<int64_t>(engine_() % static_cast<uint64_t>(last - first + 1));
  }

  // True once in `times` draws on average.
  bool once_in(int64_t times) { return in(1, times) == 1; }

  // One of the values, which are not none.
  template <class T>
  T one_of(const std::vector<T>& values) {
    return values.at(static_cast<size_t>(in(0, static_cast<int64_t>(values.size()) - 1)));
  }

 private:
  std::mt19937_64 engine_;
};

}  // namespace narrowcast::testing

// Some of all pairs: for tests in which two lists matter, and not each pair of their elements.
#pragma once

#include <cstddef>
#include <numeric>
#include <tuple>
#include <vector>

namespace narrowcast::test {

// Each of `firsts` with `count` of `seconds`, which take turns. The turns shift whenever they would repeat: neighbours
// in pairs, such as the two forms of each hook, then both meet all of `seconds`.
template <class First, class Second>
std::vector<std::tuple<First, Second>> in_turn(const std::vector<First>& firsts, const std::vector<Second>& seconds,
                                               size_t count = 1) {
  const size_t period = std::lcm(count, seconds.size());
  std::vector<std::tuple<First, Second>> pairs;
  for (size_t i = 0; i < firsts.size(); ++i) {
    const size_t begin = i * count + i * count / period;
    for (size_t k = 0; k < count; ++k) pairs.emplace_back(firsts[i], seconds[(begin + k) % seconds.size()]);
  }
  return pairs;
}

}  // namespace narrowcast::test

// Lets tests do less under sanitizers, which find wrong accesses and arithmetic, not wrong results. A test that treats
// many inputs in the same way then uses fewer inputs of every kind.
#pragma once

#include <cstddef>
#include <utility>
#include <vector>

namespace narrowcast::test {

#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
inline constexpr bool kSanitized = true;
#else
inline constexpr bool kSanitized = false;
#endif

// All elements, or under sanitizers two: each call returns the next two, so that a few calls cover every element. Call
// it from one thread only.
template <class T>
std::vector<T> some_of(std::vector<T> all) {
  static size_t turn = 0;
  if (!kSanitized || all.size() <= 2) return all;
  std::vector<T> some;
  for (int i = 0; i < 2; ++i) some.push_back(std::move(all[turn++ % all.size()]));
  return some;
}

}  // namespace narrowcast::test

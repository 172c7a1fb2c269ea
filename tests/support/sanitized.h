// What sanitizers need to see: they find an access or an arithmetic operation that is wrong, not a wrong result. So
// under them tests that try many inputs in the same way try fewer, of every kind.
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

// All of them, or under sanitizers two: of each call the next two, so that in a few calls everyone had its turn. For
// one thread.
template <class T>
std::vector<T> some_of(std::vector<T> all) {
  static size_t turn = 0;
  if (!kSanitized || all.size() <= 2) return all;
  std::vector<T> some;
  for (int i = 0; i < 2; ++i) some.push_back(std::move(all[turn++ % all.size()]));
  return some;
}

}  // namespace narrowcast::test

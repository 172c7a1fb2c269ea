// How long tests wait.
#pragma once

#include <chrono>

namespace narrowcast::testing {

// The time limit of whatever is expected to succeed. No load of the machine takes that long: only what hangs fails by
// it, before ctest ends the test (600 s). A shorter limit is for what is expected to fail by it, and begins after
// everything that must succeed before.
inline constexpr std::chrono::milliseconds kPatience = std::chrono::minutes(8);

}  // namespace narrowcast::testing

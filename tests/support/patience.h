// Time limits of tests.
#pragma once

#include <chrono>

namespace narrowcast::testing {

// The time limit of operations that are expected to succeed. No load of the machine takes that long: only a hang
// exceeds it, before ctest ends the test (600 s). Use a shorter limit only where a timeout is expected, and start it
// after everything that must succeed.
inline constexpr std::chrono::milliseconds kPatience = std::chrono::minutes(8);

}  // namespace narrowcast::testing

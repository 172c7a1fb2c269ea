// Time limits of tests, and how tests wait.
#pragma once

#include <chrono>
#include <thread>

namespace narrowcast::testing {

// The time limit of operations that are expected to succeed. No load of the machine takes that long: only a hang
// exceeds it, before ctest ends the test (600 s). Use a shorter limit only where a timeout is expected, and start it
// after everything that must succeed.
inline constexpr std::chrono::milliseconds kPatience = std::chrono::minutes(8);

// Sleeps for half a millisecond. Loops that wait for a condition call it: a loop that only yields takes as much
// processor time as a rank that computes.
inline void pause_between_looks() { std::this_thread::sleep_for(std::chrono::microseconds(500)); }

}  // namespace narrowcast::testing

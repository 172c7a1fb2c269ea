// How measured hooks compare with each other.
#pragma once

#include <optional>
#include <string>
#include <vector>

#include "trainer/train/bench/results.h"

namespace narrowcast::bench {

// How many times as fast as `reference` the hook of `time` is in the same case: 2 takes half the time. None if that
// hook was not measured.
std::optional<double> speed_up(const BenchResults& results, const HookTime& time, const std::string& reference);

// The part of the time that its payload alone takes on the link, at the rate that the user gave, else as measured.
// None if neither is there.
std::optional<double> share_of_link(const BenchResults& results, const HookTime& time);

}  // namespace narrowcast::bench

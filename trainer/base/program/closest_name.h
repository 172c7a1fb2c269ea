// "Did you mean": the known name nearest to one that is unknown.
#pragma once

#include <string>
#include <string_view>
#include <vector>

namespace narrowcast::program {

// The name among `known` that `wanted` most likely stands for: one that begins with
// it, else the one fewest single-letter edits away, if those are at most a third of
// its letters. Empty if none is that near. Ties go to the first in `known`.
std::string closest_name(std::string_view wanted, const std::vector<std::string>& known);

}  // namespace narrowcast::program

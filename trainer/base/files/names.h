// Lists of names in messages.
#pragma once

#include <string>
#include <vector>

namespace narrowcast {

// The names in quotes, five at most, and how many more there are: "'a', 'b'", "'a', 'b', 'c', 'd', 'e' and 2 more".
std::string describe_names(const std::vector<std::string>& names);

}  // namespace narrowcast

// Lists of names in messages.
#pragma once

#include <string>
#include <vector>

namespace narrowcast {

// At most five of the names, in quotes, and the number of the others: "'a', 'b'", "'a', 'b', 'c', 'd', 'e' and 2 more".
std::string describe_names(const std::vector<std::string>& names);

}  // namespace narrowcast

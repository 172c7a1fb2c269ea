// Tables for people.
#pragma once

#include <string>
#include <string_view>
#include <vector>

namespace narrowcast::reporting {

using TableRow = std::vector<std::string>;

// One line per row, each ended, columns two blanks apart. Column i is aligned to the left where alignment[i] is 'l',
// to the right where it is 'r'; each row has as many cells as `alignment` letters.
std::string aligned_table(const std::vector<TableRow>& rows, std::string_view alignment);

}  // namespace narrowcast::reporting

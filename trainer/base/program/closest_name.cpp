#include "trainer/base/program/closest_name.h"

#include <algorithm>
#include <cstdint>
#include <numeric>

namespace narrowcast::program {
namespace {

// Levenshtein's distance, one row of the table at a time.
size_t edits_between(std::string_view from, std::string_view to) {
  std::vector<size_t> row(to.size() + 1);
  std::iota(row.begin(), row.end(), size_t{0});
  for (size_t i = 1; i <= from.size(); ++i) {
    size_t diagonal = row[0];
    row[0] = i;
    for (size_t j = 1; j <= to.size(); ++j) {
      const size_t replaced = diagonal + (from[i - 1] == to[j - 1] ? 0 : 1);
      diagonal = row[j];
      row[j] = std::min({replaced, row[j] + 1, row[j - 1] + 1});
    }
  }
  return row.back();
}

}  // namespace

std::string closest_name(std::string_view wanted, const std::vector<std::string>& known) {
  std::string closest;
  size_t fewest = SIZE_MAX;
  for (const std::string& name : known) {
    const bool begins = wanted.size() >= 3 && name.starts_with(wanted);
    const size_t edits = begins ? 0 : edits_between(wanted, name);
    if (edits < fewest && (begins || 3 * edits <= name.size())) {
      closest = name;
      fewest = edits;
    }
  }
  return closest;
}

}  // namespace narrowcast::program

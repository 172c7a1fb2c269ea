#include "trainer/ddp/shards/pieces.h"

#include <c10/util/StringUtil.h>

#include <algorithm>
#include <utility>

#include <narrowcast/errors.h>
#include "trainer/base/files/json.h"

namespace narrowcast::pieces {

using nlohmann::json;

std::string describe(const Range& range) { return c10::str(range.name, "[", range.begin, ", ", range.end, ")"); }

json to_json(const Holding& holding) {
  json ranges = json::array();
  for (const Range& range : holding.ranges) ranges.push_back({range.name, range.begin, range.end});
  return {{"numels", holding.numels}, {"ranges", ranges}};
}

Holding read_holding(const json& text, const std::string& source) {
  Holding holding;
  try {
    holding.numels = text.at("numels").get<std::map<std::string, int64_t>>();
    for (const json& range : text.at("ranges")) {
      holding.ranges.push_back(
          {range.at(0).get<std::string>(), range.at(1).get<int64_t>(), range.at(2).get<int64_t>()});
    }
  } catch (const json::exception& error) {
    NARROWCAST_CHECK_INPUT(false, source, ": ", files::problem_with(error));
  }
  for (const Range& range : holding.ranges) {
    const auto numel = holding.numels.find(range.name);
    const bool is_piece = numel != holding.numels.end() && 0 <= range.begin && range.end <= numel->second &&
                          (range.begin < range.end || (range.begin == range.end && numel->second == 0));
    NARROWCAST_CHECK_INPUT(is_piece, source, ": has the piece ", describe(range), ", which is none of its tensors");
  }
  return holding;
}

std::optional<Range> first_gap(const std::vector<const Holding*>& holdings) {
  std::map<std::string, int64_t> numels;
  std::map<std::string, std::vector<Range>> ranges;
  for (const Holding* const holding : holdings) {
    numels.insert(holding->numels.begin(), holding->numels.end());
    for (const Range& range : holding->ranges) ranges[range.name].push_back(range);
  }
  for (const auto& [name, numel] : numels) {
    std::vector<Range>& found = ranges[name];
    std::ranges::sort(found, {}, &Range::begin);
    int64_t end = 0;  // All elements before it are held.
    for (const Range& range : found) {
      if (range.begin > end) return Range{name, end, range.begin};
      end = std::max(end, range.end);
    }
    if (end < numel) return Range{name, end, numel};
  }
  return std::nullopt;
}

Holding HeldPieces::holding() const {
  Holding holding = {.numels = numels};
  for (const Piece& piece : pieces) holding.ranges.push_back(piece.range);
  return holding;
}

}  // namespace narrowcast::pieces

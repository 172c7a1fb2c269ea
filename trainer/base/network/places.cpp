#include "trainer/base/network/places.h"

#include <absl/strings/numbers.h>
#include <absl/strings/str_cat.h>
#include <absl/strings/str_join.h>
#include <absl/strings/str_split.h>

#include <set>
#include <utility>

#include <narrowcast/errors.h>
#include "ops/common/text.h"

namespace narrowcast::rendezvous {
namespace {

constexpr int64_t kMostRanks = int64_t{1} << 31;  // c10d counts ranks in int

// A decimal number without a sign or spaces; -1 for anything else.
int64_t number(const std::string& text) {
  int64_t value = -1;
  const bool is_plain = !text.empty() && text.find_first_not_of("0123456789") == std::string::npos;
  return is_plain && absl::SimpleAtoi(text, &value) ? value : -1;
}

NodeRanks parse_node(const std::string& text) {
  const std::pair<std::string, std::string> parts = absl::StrSplit(text, absl::MaxSplits(':', 1));
  return {.node = number(parts.first), .ranks = number(parts.second)};
}

}  // namespace

int64_t Places::world_size() const {
  int64_t ranks = 0;
  for (const NodeRanks& node : nodes) {
    ranks += node.ranks;
  }
  return ranks;
}

std::optional<int64_t> Places::first_rank(int64_t node) const {
  int64_t first = 0;
  for (const NodeRanks& other : nodes) {
    if (other.node == node) {
      return first;
    }
    first += other.ranks;
  }
  return std::nullopt;
}

std::string to_text(const Places& places) {
  const auto text_of = [](std::string* out, const NodeRanks& node) {
    absl::StrAppend(out, node.node, ":", node.ranks);
  };
  return absl::StrCat(places.changes, " ", absl::StrJoin(places.nodes, ",", text_of));
}

Places parse_places(const std::string& text) {
  const std::pair<std::string, std::string> parts = absl::StrSplit(text, absl::MaxSplits(' ', 1));
  Places places = {.changes = number(parts.first)};
  std::set<int64_t> seen;
  int64_t ranks = 0;
  bool is_valid = places.changes >= 0;
  for (const std::string& part : std::vector<std::string>(absl::StrSplit(parts.second, ','))) {
    places.nodes.push_back(parse_node(part));
    const NodeRanks& node = places.nodes.back();
    is_valid = is_valid && node.node > 0 && node.ranks > 0 && node.ranks <= kMostRanks && seen.insert(node.node).second;
    ranks += is_valid ? node.ranks : 0;
    is_valid = is_valid && ranks < kMostRanks;
  }
  NARROWCAST_CHECK_INPUT(is_valid, "the job's store: ", kPlaces, " is ", in_quotes(text));
  return places;
}

}  // namespace narrowcast::rendezvous

#include "trainer/base/network/places.h"

#include <c10/util/StringUtil.h>

#include <algorithm>
#include <charconv>
#include <set>
#include <string_view>

#include <narrowcast/errors.h>
#include "ops/common/text.h"

namespace narrowcast::rendezvous {
namespace {

constexpr int64_t kMostRanks = int64_t{1} << 31;  // c10d counts ranks in int

// A decimal number without a sign or spaces; -1 for anything else.
int64_t number(std::string_view text) {
  int64_t value = -1;
  const char* const end = text.data() + text.size();
  const bool has_sign = !text.empty() && text[0] == '-';
  const auto parsed = std::from_chars(text.data(), end, value);
  return !has_sign && parsed.ec == std::errc() && parsed.ptr == end ? value : -1;
}

// The texts before and after the first `separator`; without one the second is empty.
std::pair<std::string_view, std::string_view> halves(std::string_view text, char separator) {
  const size_t middle = std::min(text.find(separator), text.size());
  return {text.substr(0, middle), text.substr(std::min(middle + 1, text.size()))};
}

NodeRanks parse_node(std::string_view text) {
  const auto [node, ranks] = halves(text, ':');
  return {.node = number(node), .ranks = number(ranks)};
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
  std::string text = std::to_string(places.changes);
  for (const NodeRanks& node : places.nodes) {
    text += c10::str(&node == places.nodes.data() ? " " : ",", node.node, ":", node.ranks);
  }
  return text;
}

Places parse_places(const std::string& text) {
  const auto [changes, nodes] = halves(text, ' ');
  Places places = {.changes = number(changes)};
  std::set<int64_t> seen;
  int64_t ranks = 0;
  bool is_valid = places.changes >= 0 && !nodes.empty() && nodes.back() != ',';
  for (std::string_view rest = nodes; is_valid && !rest.empty();) {
    const auto [first, others] = halves(rest, ',');
    rest = others;
    places.nodes.push_back(parse_node(first));
    const NodeRanks& node = places.nodes.back();
    is_valid = node.node > 0 && 0 < node.ranks && node.ranks < kMostRanks - ranks && seen.insert(node.node).second;
    ranks += node.ranks;
  }
  NARROWCAST_CHECK_INPUT(is_valid, "the job's store: ", kPlaces, " is ", in_quotes(text));
  return places;
}

}  // namespace narrowcast::rendezvous

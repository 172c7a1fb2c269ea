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

// Nodes that are separated by commas.
std::vector<NodeRanks> parse_nodes(std::string_view text) {
  std::vector<NodeRanks> nodes;
  for (bool is_last = false; !is_last;) {
    const auto [first, others] = halves(text, ',');
    nodes.push_back(parse_node(first));
    is_last = first.size() == text.size();
    text = others;
  }
  return nodes;
}

std::string text_of(const std::vector<NodeRanks>& nodes) {
  std::string text;
  for (const NodeRanks& node : nodes) {
    text += c10::str(text.empty() ? " " : ",", node.node, ":", node.ranks);
  }
  return text;
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
  return std::to_string(places.changes) + text_of(places.nodes) + text_of(places.starting);
}

Places parse_places(const std::string& text) {
  const auto [changes, all] = halves(text, ' ');
  const auto [nodes, starting] = halves(all, ' ');
  Places places = {.changes = number(changes), .nodes = parse_nodes(nodes)};
  if (nodes.size() < all.size()) {
    places.starting = parse_nodes(starting);
  }
  std::set<int64_t> seen;
  int64_t ranks = 0;
  const auto is_possible = [&](const NodeRanks& node) {
    const bool is_right =
        node.node > 0 && 0 < node.ranks && node.ranks < kMostRanks - ranks && seen.insert(node.node).second;
    ranks += is_right ? node.ranks : 0;
    return is_right;
  };
  const bool is_valid = places.changes >= 0 && std::ranges::all_of(places.nodes, is_possible) &&
                        std::ranges::all_of(places.starting, is_possible);
  NARROWCAST_CHECK_INPUT(is_valid, "the job's store: ", kPlaces, " is ", in_quotes(text));
  return places;
}

std::string to_text(const RankOfNode& rank) { return c10::str(rank.node, "/", rank.rank_on_node); }

std::optional<RankOfNode> parse_rank(std::string_view text) {
  const auto [node, rank] = halves(text, '/');
  const RankOfNode parsed = {.node = number(node), .rank_on_node = number(rank)};
  return parsed.node >= 0 && parsed.rank_on_node >= 0 ? std::optional(parsed) : std::nullopt;
}

}  // namespace narrowcast::rendezvous

#include "trainer/ddp/quorum/round_decisions.h"

#include <c10/util/StringUtil.h>

#include <utility>

#include "trainer/ddp/quorum/round_message.h"

namespace narrowcast {
namespace {

// Not a list. A store returns it for a key that does not exist, if it is the expected value.
constexpr const char* kNotDecided = "?";

// Each takes a round trip. With more than one per round, none stays for ever.
constexpr int kMostForgotten = 2;

std::string key_of(int64_t round) { return c10::str("round/", round); }

}  // namespace

std::string RoundDecisions::compare_and_set(int64_t round, const std::string& expected, const std::string& wanted) {
  const auto bytes_of = [](const std::string& text) { return std::vector<uint8_t>(text.begin(), text.end()); };
  const std::vector<uint8_t> value = store_->compareSet(key_of(round), bytes_of(expected), bytes_of(wanted));
  return {value.begin(), value.end()};
}

std::vector<int64_t> RoundDecisions::decide(int64_t round, const std::vector<int64_t>& proposal) {
  return parse_groups(compare_and_set(round, "", text_of_groups(proposal)), groups_, quorum_);
}

std::optional<std::vector<int64_t>> RoundDecisions::find(int64_t round) {
  const std::string value = compare_and_set(round, kNotDecided, kNotDecided);
  if (value == kNotDecided) {
    return std::nullopt;
  }
  return parse_groups(value, groups_, quorum_);
}

void RoundDecisions::forget_before(int64_t round) {
  for (int count = 0; forgotten_ < round && count < kMostForgotten; ++forgotten_, ++count) {
    store_->deleteKey(key_of(forgotten_));
  }
}

void RoundDecisions::forget_all_before(int64_t round) {
  while (forgotten_ < round) forget_before(round);
}

}  // namespace narrowcast

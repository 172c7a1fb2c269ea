#include "trainer/ddp/quorum/round_message.h"

#include <ATen/ATen.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <string>
#include <string_view>
#include <thread>
#include <torch/csrc/distributed/c10d/HashStore.hpp>
#include <vector>

#include <narrowcast/errors.h>
#include "tests/support/error_message.h"
#include "trainer/ddp/quorum/round_decisions.h"

namespace narrowcast::testing {
namespace {

using ::testing::HasSubstr;

RoundHeader some_header() {
  return {.group = 3, .number = 7, .rounds = 9, .weight = 60, .notes = {1.5, -2, 0, 0, 0, 0, 0, 1e300}};
}

std::string refusal(const RoundHeader& header) {
  return error_message<CorruptInputError>([&] { header_of(round_message(header, at::zeros({5}, at::kByte)), 3, 7); });
}

TEST(RoundMessage, HasTheHeaderAndTheBytes) {
  const at::Tensor encoded = at::arange(200, at::kByte);
  const at::Tensor message = round_message(some_header(), encoded);
  EXPECT_EQ(message.numel(), kRoundHeaderBytes + 200);
  EXPECT_TRUE(at::equal(encoded_in(message), encoded));
  const RoundHeader header = header_of(message, 3, 7);
  EXPECT_EQ(header.rounds, 9);
  EXPECT_EQ(header.weight, 60);
  EXPECT_EQ(header.notes, some_header().notes);
}

TEST(RoundMessage, RefusesWrongNumbers) {
  RoundHeader header = some_header();
  header.mark ^= 1;
  EXPECT_THAT(refusal(header), HasSubstr("group 3 sent bytes that are not a message of an outer round"));
  header = some_header();
  header.group = 2;
  EXPECT_THAT(refusal(header), HasSubstr("message 7 of group 3 names itself message 7 of group 2"));
  header = some_header();
  header.number = 8;
  EXPECT_THAT(refusal(header), HasSubstr("names itself message 8"));
  header = some_header();
  header.rounds = -1;
  EXPECT_THAT(refusal(header), HasSubstr("was sent after -1 rounds"));
  for (const int64_t weight : {int64_t{0}, int64_t{-5}, kMostRoundWeight + 1}) {
    header = some_header();
    header.weight = weight;
    EXPECT_THAT(refusal(header), HasSubstr("must be in 1..1099511627776, but is " + std::to_string(weight)));
  }
  EXPECT_THAT(error_message<CorruptInputError>([] { header_of(at::zeros({kRoundHeaderBytes - 1}, at::kByte), 0, 0); }),
              HasSubstr("has 127 bytes, but its header alone has 128"));
}

TEST(RoundGroups, AreTextAndBack) {
  for (const std::vector<int64_t>& groups : std::vector<std::vector<int64_t>>{{0}, {4}, {0, 2, 10}, {0, 1, 2, 3}}) {
    EXPECT_EQ(parse_groups(text_of_groups(groups), 11, 1), groups);
  }
}

TEST(RoundGroups, RefusesOtherTexts) {
  const auto message_of = [](std::string_view text) {
    return error_message<CorruptInputError>([&] { parse_groups(text, 3, 2); });
  };
  for (const char* const text : {"", ",", "0,", "0,,1", "x", "0 1", "0;1", "0,1,", "99999999999999999999"}) {
    EXPECT_THAT(message_of(text), HasSubstr("something that is not a number")) << text;
  }
  for (const char* const text : {"0,3", "-1,1", "1,0", "1,1"}) {
    EXPECT_THAT(message_of(text), HasSubstr("must ascend within 0..2")) << text;
  }
  EXPECT_THAT(message_of("1"), HasSubstr("has 1 groups, but outer_quorum is 2"));
}

TEST(RoundDecisions, TheFirstOneCountsForAll) {
  const auto store = c10::make_intrusive<c10d::HashStore>();
  RoundDecisions first(store, 4, 2);
  RoundDecisions second(store, 4, 2);
  EXPECT_EQ(first.find(0), std::nullopt);
  EXPECT_EQ(first.find(0), std::nullopt) << "a search decides nothing";
  EXPECT_EQ(first.decide(0, {0, 1}), (std::vector<int64_t>{0, 1}));
  EXPECT_EQ(second.decide(0, {0, 1, 3}), (std::vector<int64_t>{0, 1}));
  EXPECT_EQ(second.find(0), (std::vector<int64_t>{0, 1}));
  EXPECT_EQ(second.find(1), std::nullopt);
}

TEST(RoundDecisions, AreEqualInARace) {
  constexpr int64_t kRounds = 200;
  constexpr int64_t kGroups = 5;
  const auto store = c10::make_intrusive<c10d::HashStore>();
  std::vector<std::vector<std::vector<int64_t>>> decided(kGroups);
  std::vector<std::thread> threads;
  for (int64_t group = 0; group < kGroups; ++group) {
    threads.emplace_back([&, group] {
      RoundDecisions decisions(store, kGroups, 1);
      for (int64_t round = 0; round < kRounds; ++round) decided[group].push_back(decisions.decide(round, {group}));
    });
  }
  for (std::thread& thread : threads) thread.join();
  for (int64_t group = 1; group < kGroups; ++group) EXPECT_EQ(decided[group], decided[0]);
}

TEST(RoundDecisions, ForgetsTheRoundsBefore) {
  const auto store = c10::make_intrusive<c10d::HashStore>();
  RoundDecisions decisions(store, 2, 1);
  for (int64_t round = 0; round < 4; ++round) decisions.decide(round, {1});
  const int64_t before = store->getNumKeys();
  decisions.forget_before(3);
  EXPECT_EQ(store->getNumKeys(), before - 2) << "at most two at once";
  decisions.forget_before(3);
  EXPECT_EQ(store->getNumKeys(), before - 3);
  EXPECT_EQ(decisions.find(3), std::vector<int64_t>{1});
  EXPECT_EQ(decisions.find(2), std::nullopt);
}

TEST(RoundDecisions, RefusesWhatIsNotAList) {
  const auto store = c10::make_intrusive<c10d::HashStore>();
  RoundDecisions decisions(store, 2, 2);
  RoundDecisions(store, 2, 1).decide(0, {1});
  EXPECT_THAT(error_message<CorruptInputError>([&] {
                decisions.decide(0, {0, 1});
              }),
              HasSubstr("has 1 groups, but outer_quorum is 2"));
  EXPECT_THAT(error_message<CorruptInputError>([&] { decisions.find(0); }), HasSubstr("outer_quorum is 2"));
}

}  // namespace
}  // namespace narrowcast::testing

#include "trainer/ddp/quorum/round_message.h"

#include <ATen/ATen.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <string>
#include <string_view>
#include <vector>

#include <narrowcast/errors.h>
#include "tests/support/error_message.h"

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

}  // namespace
}  // namespace narrowcast::testing

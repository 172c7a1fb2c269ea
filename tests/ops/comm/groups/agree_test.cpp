#include "ops/comm/groups/agree.h"

#include <ATen/ATen.h>
#include <c10/util/Exception.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cstring>
#include <limits>
#include <string>
#include <vector>

#include "ops/comm/groups/group.h"
#include "tests/support/error_message.h"
#include "tests/support/ranks.h"

namespace narrowcast::collectives {
namespace {

using ::testing::AllOf;
using testing::error_message;
using ::testing::HasSubstr;
using ::testing::Le;
using testing::run_ranks;
using ::testing::SizeIs;
using ::testing::StartsWith;
using Group = c10::intrusive_ptr<c10d::ProcessGroup>;

Announcement some() {
  return {.call = "mean", .entries = {{"format", "int8"}, {"path", std::string("a\0\xff", 3)}}, .numbers = {7, -1}};
}

void expect_equal(const Announcement& read, const Announcement& written) {
  EXPECT_EQ(read.call, written.call);
  EXPECT_EQ(read.numbers, written.numbers);
  ASSERT_EQ(read.entries.size(), written.entries.size());
  for (size_t i = 0; i < read.entries.size(); ++i) {
    EXPECT_EQ(read.entries[i].name, written.entries[i].name);
    EXPECT_EQ(read.entries[i].value, written.entries[i].value);
  }
  ASSERT_EQ(read.refusal.has_value(), written.refusal.has_value());
  if (read.refusal) {
    EXPECT_EQ(read.refusal->wrong_type, written.refusal->wrong_type);
    EXPECT_EQ(read.refusal->reason, written.refusal->reason);
  }
}

void expect_round_trip(const Announcement& announcement) {
  const std::string message = to_message(announcement);
  for (const size_t zeros : {0, 1, 100}) {
    const auto read = from_message(message + std::string(zeros, '\0'));
    ASSERT_TRUE(read.has_value());
    expect_equal(*read, announcement);
  }
}

TEST(Message, HoldsAnAnnouncement) {
  expect_round_trip({});
  expect_round_trip(some());
  expect_round_trip({.call = "mean", .refusal = Refusal{false, "x is big"}});
  expect_round_trip({.refusal = Refusal{true, ""}});
}

TEST(Message, IsNoneIfItIsCut) {
  const std::string message = to_message(some());
  for (size_t size = 0; size < message.size(); ++size) {
    EXPECT_FALSE(from_message(message.substr(0, size)).has_value()) << size;
  }
}

TEST(Message, IsNoneIfSomethingFollowsOrItsMarkIsAnother) {
  const std::string message = to_message(some());
  EXPECT_FALSE(from_message(message + '\1').has_value());
  EXPECT_FALSE(from_message(message + std::string(5, '\0') + '\1').has_value());
  for (size_t byte = 0; byte < sizeof(kMessageMark); ++byte) {
    std::string other = message;
    ++other[byte];
    EXPECT_FALSE(from_message(other).has_value()) << byte;
  }
}

template <class Number>
std::string with_number(std::string message, size_t at, Number number) {
  std::memcpy(message.data() + at, &number, sizeof(number));
  return message;
}

// Sizes that would end beyond the message, or that exceed the machine's memory.
TEST(Message, IsNoneIfASizeIsTooLarge) {
  const std::string message = to_message(some());
  const auto rest = static_cast<int64_t>(message.size()) - 16;
  for (const int64_t size : {int64_t{-1}, rest - 1, rest + 1, std::numeric_limits<int64_t>::max()}) {
    EXPECT_FALSE(from_message(with_number(message, 8, size)).has_value()) << size;
  }
  constexpr size_t kReason = 17, kCall = 21, kEntries = 29;
  for (const size_t place : {kReason, kCall, kEntries}) {
    for (const uint32_t size : {uint32_t{200}, std::numeric_limits<uint32_t>::max()}) {
      EXPECT_FALSE(from_message(with_number(message, place, size)).has_value()) << place << ": " << size;
    }
  }
}

TEST(Message, CutsAReasonBetweenCharacters) {
  std::string reason(5000, 'a');
  reason.replace(kLongestReason - 1, 2, "\xc3\xa9");
  const Announcement refusal{.call = std::string(100, 'c'), .refusal = Refusal{true, reason}};
  const auto read = from_message(messages_in(slot_of(refusal).unsqueeze(0))[0]);
  ASSERT_TRUE(read.has_value());
  EXPECT_EQ(read->refusal->reason, std::string(kLongestReason - 1, 'a'));
}

// The error on rank 1.
std::string error_of(const std::vector<Announcement>& announcements) {
  std::vector<std::string> messages;
  for (const Announcement& announcement : announcements) messages.push_back(to_message(announcement));
  return error_message<c10::ValueError>([&] { check_announcements(1, "a step", {messages.begin(), messages.end()}); });
}

std::string error_of(const std::vector<std::vector<Entry>>& lists) {
  std::vector<Announcement> announcements;
  for (const auto& list : lists) announcements.push_back({.entries = list});
  return error_of(announcements);
}

using Lists = std::vector<std::vector<Entry>>;
using Announcements = std::vector<Announcement>;

TEST(CheckAnnouncements, AcceptsEqualMessagesWithoutDecodingThem) {
  const std::string message = to_message(some());
  EXPECT_NO_THROW(check_announcements(1, "a step", {message, message, message}));
  const std::string cut = message.substr(0, message.size() - 1);
  ASSERT_FALSE(from_message(cut).has_value());
  EXPECT_NO_THROW(check_announcements(1, "a step", {cut, cut, cut}));
  Announcement other = some();
  other.entries[0].value = "int4";
  EXPECT_EQ(error_of(Announcements{some(), some(), other}),
            "mean: format differs between ranks: rank 0 has int8, rank 2 has int4");
}

TEST(CheckAnnouncements, RefusesEqualRefusals) {
  const Announcement refusal{.call = "sum", .refusal = Refusal{false, "x is big"}};
  EXPECT_EQ(error_of(Announcements{refusal, refusal}), "sum on rank 0: x is big");
}

TEST(HasRefusal, ReadsAWholeOrACutMessage) {
  const std::string message = to_message({.refusal = Refusal{true, ""}});
  EXPECT_TRUE(has_refusal(message));
  EXPECT_TRUE(has_refusal(message.substr(0, 17)));
  EXPECT_FALSE(has_refusal(message.substr(0, 16)));
  EXPECT_FALSE(has_refusal(to_message(some())));
}

TEST(CheckAnnouncements, NamesTheFirstRankThatDiffersAndItsFirstEntryThatDoes) {
  EXPECT_EQ(error_of(Lists{{{"a", "1"}, {"b", "2"}, {"c", "3"}},
                           {{"a", "1"}, {"b", "2"}, {"c", "4"}},
                           {{"a", "1"}, {"b", "5"}, {"c", "3"}}}),
            "c differs between ranks: rank 0 has 3, rank 1 has 4");
  EXPECT_EQ(
      error_of(Announcements{{.call = "mean", .entries = {{"a", "1"}}}, {.call = "mean", .entries = {{"a", ""}}}}),
      "mean: a differs between ranks: rank 0 has 1, rank 1 has ");
}

TEST(CheckAnnouncements, NamesAnEntryThatIsMissing) {
  EXPECT_EQ(error_of(Lists{{{"a", "1"}}, {{"a", "1"}}, {}}),
            "a differs between ranks: rank 0 has 1, rank 2 does not have it");
  EXPECT_EQ(error_of(Lists{{{"a", "1"}}, {{"a", "1"}, {"b", "2"}}}),
            "b differs between ranks: rank 0 does not have it, rank 1 has 2");
}

TEST(CheckAnnouncements, ComparesFirstWhatBothRanksHave) {
  EXPECT_EQ(error_of(Lists{{{"bits", "4"}, {"hook", "auto"}}, {{"hook", "int8"}}}),
            "hook differs between ranks: rank 0 has auto, rank 1 has int8");
}

TEST(CheckAnnouncements, ComparesTheOrder) {
  EXPECT_EQ(error_of(Lists{{{"a", "1"}, {"b", "2"}}, {{"b", "2"}, {"a", "1"}}}),
            "the order differs between ranks: rank 0 has a, rank 1 has b");
  EXPECT_EQ(error_of(Lists{{{"a", "1"}, {"a", "2"}}, {{"a", "1"}, {"a", "3"}}}),
            "a differs between ranks: rank 0 has 2, rank 1 has 3");
  EXPECT_EQ(error_of(Lists{{{"a", "1"}}, {{"a", "1"}, {"a", "1"}}}),
            "the order differs between ranks: rank 0 does not have it, rank 1 has a");
}

TEST(CheckAnnouncements, ComparesCallsBeforeEntriesAndNoNumbers) {
  EXPECT_EQ(
      error_of(Announcements{{.call = "mean", .entries = {{"a", "1"}}}, {.call = "sum"}}),
      "call differs between ranks: rank 0 has mean, rank 1 has sum; all ranks must make the same calls in the same "
      "order");
  const std::string first = to_message({.call = "mean", .numbers = {1}});
  const std::string other = to_message({.call = "mean", .numbers = {2, 3}});
  EXPECT_NO_THROW(check_announcements(0, "a step", {first, other}));
}

TEST(CheckAnnouncements, NamesTheFirstRankThatRefusesBeforeAnyDifference) {
  const Announcement refusal{.call = "sum", .refusal = Refusal{false, "x is \x1b[2J big"}};
  EXPECT_EQ(error_of(Announcements{{.call = "mean"}, refusal, refusal}), "sum on rank 1: x is \\x1b[2J big");
  EXPECT_EQ(error_of(Announcements{{.refusal = Refusal{false, "x is big"}}}), "rank 0: x is big");
  const std::string message = to_message({.call = "mean", .refusal = Refusal{true, "x is Int"}});
  EXPECT_EQ(error_message<c10::TypeError>([&] { check_announcements(0, "a step", {message}); }),
            "mean on rank 0: x is Int");
}

TEST(CheckAnnouncements, NamesARankThatSentSomethingElse) {
  const std::string message = to_message({.refusal = Refusal{false, "not looked at"}});
  EXPECT_THAT(error_message<c10::DistBackendError>([&] {
                check_announcements(2, "a step", {message, "{}", "{}"});
              }),
              StartsWith("rank 2: a step failed: rank 1 sent a message that is not an announcement; all ranks must use "
                         "the same version of narrowcast"));
}

TEST(CheckAnnouncements, ShowsLongTextsInPart) {
  const std::string text(1 << 20, 'x');
  EXPECT_THAT(
      error_of(Announcements{{.call = text, .entries = {{text, text}}}, {.call = text, .entries = {{text, "\n"}}}}),
      AllOf(HasSubstr(" differs between ranks: rank 0 has xxx"), HasSubstr(", rank 1 has \\n"), SizeIs(Le(1000))));
}

class Agree : public ::testing::TestWithParam<int64_t> {
 protected:
  // Expects this error on every rank if the last rank announces `odd` and the others `usual`. The group stays usable.
  template <class Error = c10::ValueError>
  void expect_error(const Announcement& usual, const Announcement& odd, const std::string& message) const {
    run_ranks(GetParam(), [&](int64_t rank, const Group& group) {
      EXPECT_EQ(error_message<Error>([&] { agree(group, rank == last() ? odd : usual); }), message) << "rank " << rank;
      EXPECT_EQ(agree(group, usual).size(), static_cast<size_t>(GetParam()));
    });
  }
  int64_t last() const { return GetParam() - 1; }
  std::string named_last() const { return "rank " + std::to_string(last()); }
};
INSTANTIATE_TEST_SUITE_P(Worlds, Agree, ::testing::Values(1, 2, 3, 5));

TEST_P(Agree, ReturnsWhatAllAnnounceIfItIsTheSame) {
  run_ranks(GetParam(), [&](int64_t rank, const Group& group) {
    Announcement own = some();
    own.numbers = {rank};
    const auto all = agree(group, own, at::kCPU, kAnnouncementBytes + 8);
    ASSERT_EQ(all.size(), static_cast<size_t>(GetParam()));
    for (int64_t other = 0; other < GetParam(); ++other) {
      own.numbers = {other};
      expect_equal(all[static_cast<size_t>(other)], own);
    }
  });
}

TEST_P(Agree, ThrowsTheSameOnAllRanksIfOneDiffers) {
  if (GetParam() == 1) return;
  const Announcement usual{.call = "mean", .entries = {{"a", "1"}, {"b", "2"}}};
  const std::string beginning = "mean: b differs between ranks: rank 0 ";
  expect_error(usual, {.call = "mean", .entries = {{"a", "1"}, {"b", "3"}}},
               beginning + "has 2, " + named_last() + " has 3");
  expect_error(usual, {.call = "mean", .entries = {{"a", "1"}}},
               beginning + "has 2, " + named_last() + " does not have it");
  expect_error({.call = "mean", .entries = {{"a", "1"}}}, usual,
               beginning + "does not have it, " + named_last() + " has 2");
}

TEST_P(Agree, ThrowsTheErrorOfOneRankOnAll) {
  const Announcement usual{.entries = {{"a", "1"}}};
  expect_error(usual, {.refusal = Refusal{false, "x is big"}}, named_last() + ": x is big");
  expect_error<c10::TypeError>(usual, {.call = "mean", .refusal = Refusal{true, std::string(9000, 'x')}},
                               "mean on " + named_last() + ": " + std::string(kLongestReason, 'x'));
}

TEST_P(Agree, NamesAPeerThatSendsSomethingElse) {
  if (GetParam() == 1) return;
  run_ranks(GetParam(), [&](int64_t rank, const Group& group) {
    if (rank == last()) {
      all_gather_rows(group, at::full({kAnnouncementBytes}, 0x7f, at::kByte));
      return;
    }
    EXPECT_THAT(error_message<c10::DistBackendError>([&] { agree(group, {.call = "mean"}); }),
                HasSubstr(": mean failed: " + named_last() + " sent a message that is not an announcement"));
  });
}

TEST(AgreeWithASilentPeer, IsABackendError) {
  run_ranks(2,
            [](int64_t rank, const Group& group) {
              if (rank == 1) return;
              EXPECT_THAT(error_message<c10::DistBackendError>([&] { agree(group, {}); }),
                          StartsWith("rank 0: comparing values failed: "));
            },
            {.timeout = std::chrono::milliseconds(500)});
}

}  // namespace
}  // namespace narrowcast::collectives

#include "trainer/launcher/posix/stream_choices.h"

#include <c10/util/Exception.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "tests/support/error_message.h"

namespace narrowcast::launcher {
namespace {

using ::testing::ElementsAre;
using ::testing::IsEmpty;
using ::testing::StartsWith;

std::string choice_refusal(const std::function<void()>& action) {
  return testing::error_message<c10::ValueError>(action);
}

StreamChoices parse(const std::string& text) { return StreamChoices::parse("--tee", text); }

TEST(StreamChoices, CountAsTorchrunDoes) {
  for (int value = 0; value <= 3; ++value) {
    const Streams streams = parse(std::to_string(value)).of(5);
    EXPECT_EQ(streams.output, value == 1 || value == 3) << value;
    EXPECT_EQ(streams.error, value == 2 || value == 3) << value;
  }
}

TEST(StreamChoices, CanDifferByLocalRank) {
  const StreamChoices choices = parse("0:3,2:1");
  EXPECT_TRUE(choices.of(0).error);
  EXPECT_FALSE(choices.of(1).output);
  EXPECT_TRUE(choices.of(2).output);
  EXPECT_FALSE(choices.of(2).error);
  EXPECT_EQ(choices.largest_rank(), 2);
}

TEST(StreamChoices, KnowWhetherTheyAreEmpty) {
  EXPECT_TRUE(parse("0").empty());
  EXPECT_TRUE(parse("1:0").empty());
  EXPECT_FALSE(parse("2").empty());
  EXPECT_FALSE(parse("1:1").empty());
}

TEST(StreamChoices, RefuseTheRest) {
  for (const char* const text : {"", "4", "-1", "x", "0:", ":1", "0:4", "-1:1", "0:1,", "0:1:2", "0:1,1"}) {
    EXPECT_THAT(choice_refusal([&] { parse(text); }), StartsWith(std::string("--tee=") + text + ": must be 0 (none)"));
  }
  EXPECT_EQ(choice_refusal([] { parse("1:1,1:2"); }), "--tee=1:1,1:2: names local rank 1 twice");
}

TEST(LocalRanks, AreListed) {
  EXPECT_THAT(parse_local_ranks("--f", "2,0"), ElementsAre(0, 2));
  EXPECT_THAT(parse_local_ranks("--f", ""), IsEmpty());
  EXPECT_EQ(choice_refusal([] { parse_local_ranks("--f", "0;1"); }), "--f=0;1: must be local ranks like 0,2");
}

TEST(LocalRanks, MustExist) {
  EXPECT_EQ(choice_refusal([] { check_local_ranks({.redirects = parse("2:1")}, 2); }),
            "--redirects names local rank 2, but --nproc_per_node is 2");
  EXPECT_EQ(choice_refusal([] {
              check_local_ranks({.shown_ranks = {0, 7}}, 2);
            }),
            "--local_ranks_filter names local rank 7, but --nproc_per_node is 2");
  EXPECT_EQ(choice_refusal([] { check_local_ranks({.tee = parse("1:3"), .shown_ranks = {1}}, 2); }),
            "nothing was thrown");
}

TEST(WorkerTargets, AreShownUnlessRedirected) {
  const OutputChoices choices{.redirects = parse("3"), .tee = parse("1:1")};
  const WorkerTargets zero = targets_for(choices, 0, "run");
  EXPECT_FALSE(zero.output.shown);
  EXPECT_EQ(zero.output.file, "run/stdout.log");
  const WorkerTargets one = targets_for(choices, 1, "run");
  EXPECT_TRUE(one.output.shown);  // tee wins
  EXPECT_EQ(one.output.file, "run/stdout.log");
  EXPECT_FALSE(one.error.shown);
}

TEST(WorkerTargets, AreHiddenByTheFilter) {
  const OutputChoices choices{.tee = parse("2"), .shown_ranks = {0}};
  EXPECT_TRUE(targets_for(choices, 0, "run").error.shown);
  const WorkerTargets hidden = targets_for(choices, 1, "run");
  EXPECT_FALSE(hidden.output.shown);
  EXPECT_TRUE(hidden.output.file.empty());
  EXPECT_FALSE(hidden.error.shown);
  EXPECT_EQ(hidden.error.file, "run/stderr.log");
}

}  // namespace
}  // namespace narrowcast::launcher

#include "trainer/train/reporting/progress.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <memory>
#include <sstream>

namespace narrowcast::reporting {
namespace {

using ::testing::EndsWith;
using ::testing::HasSubstr;
using ::testing::Not;
using ::testing::StartsWith;

StepReport report_at(int64_t step, double seconds) {
  StepReport report;
  report.step = step;
  report.loss = 2.5;
  report.learning_rate = 3e-3;
  report.units_per_second = 41234;
  report.seconds = seconds;
  report.payload_bytes_sent = 3'100'000;
  return report;
}

int64_t lines_in(const std::ostringstream& out) {
  const std::string text = out.str();
  return std::count(text.begin(), text.end(), '\n');
}

TEST(Progress, PlainLineTellsAll) {
  std::ostringstream out;
  Progress progress(out, {.steps = 400, .unit = "tokens"});
  progress.on_step(report_at(100, 5));
  EXPECT_EQ(out.str(), "step 100/400  loss 2.5000  lr 3.0e-03  41.2k tokens/s  3.10 MB sent  15 s left\n");
}

TEST(Progress, PlainLineTellsWhatRanksWaitFor) {
  std::ostringstream out;
  Progress progress(out, {.steps = 400, .unit = "tokens"});
  StepReport report = report_at(100, 5);
  report.exchange = ExchangeReport{.share = 0.124, .slowest_rank = 3, .waiting_share = 0.05};
  progress.on_step(report);
  EXPECT_THAT(out.str(), HasSubstr("  3.10 MB sent  exchange 12%, wait for rank 3 5%  15 s left\n"));
}

// Includes skipped steps of a report that printed no line.
TEST(Progress, NamesTheRanksForWhichStepsWereSkipped) {
  std::ostringstream out;
  Progress progress(out, {.steps = 400, .unit = "tokens", .seconds_between_lines = 2});
  progress.on_step(report_at(99, 5));
  StepReport report = report_at(100, 6);
  report.skipped_steps = 2;
  report.skipped = SkippedReport{.nonfinite_ranks = {3, 1}, .in_a_row = 2};
  progress.on_step(report);
  EXPECT_EQ(lines_in(out), 1);
  report = report_at(110, 7);
  report.skipped_steps = 2;
  progress.on_step(report);
  EXPECT_THAT(out.str(), HasSubstr("  3.10 MB sent  2 skipped (ranks 1, 3)  "));
}

TEST(Progress, BlamesTheMeanWhereNoRankIsToBlame) {
  EXPECT_EQ(blame_text({.nonfinite_ranks = {1}, .in_a_row = 2}), "the gradients of rank 1 were not finite");
  EXPECT_EQ(blame_text({.in_a_row = 2}), "every rank's own gradients were finite, their mean was not");
}

TEST(Observers, AllAreTold) {
  std::ostringstream own;
  std::ostringstream other;
  Progress outlives(other, {.steps = 10});
  Observers observers;
  observers.add(outlives);
  observers.own(std::make_unique<Progress>(own, ProgressOptions{.steps = 10}));
  observers.on_step(report_at(1, 1));
  observers.on_evaluation({.step = 1, .loss = 2.25});
  observers.on_hook({.step = 1, .hook = "auto", .decision = "int8"});
  observers.on_buckets({.step = 3, .chosen = {3, 15, 0.0063}, .sizes = {{3, 15, 0.0063}}});
  observers.on_shares({.step = 8, .samples = {24, 8}, .seconds_per_sample = {0.012, 0.0361}});
  EXPECT_EQ(lines_in(own), 5);
  EXPECT_EQ(own.str(), other.str());
}

TEST(Progress, SaysWhichBucketsWereChosenAndWhy) {
  const BucketsReport report = {.step = 3,
                                .chosen = {3, 15, 0.0063},
                                .backward_seconds = 0.12,
                                .sizes = {{1, 42, 0.0101}, {3, 15, 0.0063}, {25, 3, 0.0384}}};
  std::ostringstream out;
  Progress progress(out, {.steps = 400});
  progress.on_buckets(report);
  EXPECT_EQ(out.str(),
            "buckets of 3 MiB: backward pass 120 ms; left to send after it: 10 ms with 1 MiB, 6.3 ms with 3 MiB, "
            "38 ms with 25 MiB\n");
  std::ostringstream screen;
  Progress terminal(screen, {.steps = 400, .terminal = true});
  terminal.on_buckets(report);
  EXPECT_THAT(screen.str(), EndsWith("25 MiB\n")) << "it stays";
}

TEST(Progress, SaysWhichSharesWereChosenAndWhy) {
  std::ostringstream out;
  Progress progress(out, {.steps = 400});
  progress.on_shares({.step = 8, .samples = {24, 8}, .seconds_per_sample = {0.012, 0.0361}});
  EXPECT_EQ(out.str(), "shares after step 8: 24, 8 samples of each batch; a sample takes 12 ms, 36 ms\n");
  progress.on_shares({.step = 32, .samples = {16, 16}, .seconds_per_sample = {0.00012, 0.0025}});
  EXPECT_THAT(out.str(),
              EndsWith("shares after step 32: 16, 16 samples of each batch; a sample takes 120 us, 2.5 ms\n"));
}

TEST(Progress, PlainLinesComeEverySoOften) {
  std::ostringstream out;
  Progress progress(out, {.steps = 400, .seconds_between_lines = 2});
  progress.on_step(report_at(1, 1.0));
  EXPECT_EQ(lines_in(out), 1);
  progress.on_step(report_at(2, 2.9));
  EXPECT_EQ(lines_in(out), 1);
  progress.on_step(report_at(3, 3.0));
  EXPECT_EQ(lines_in(out), 2);
}

TEST(Progress, LastStepAlwaysGetsALine) {
  std::ostringstream out;
  Progress progress(out, {.steps = 10});
  progress.on_step(report_at(9, 9.0));
  progress.on_step(report_at(10, 9.1));
  EXPECT_EQ(lines_in(out), 2);
  EXPECT_THAT(out.str(), EndsWith("9.1 s in all\n"));
}

TEST(Progress, PlainTextHasNoEscapeSequences) {
  std::ostringstream out;
  Progress progress(out, {.steps = 10});
  progress.on_step(report_at(1, 1));
  progress.on_evaluation({.step = 1, .loss = 2.25, .seconds = 1});
  EXPECT_THAT(out.str(), Not(HasSubstr("\x1b")));
  EXPECT_THAT(out.str(), EndsWith("step  1/10  validation loss 2.2500\n"));
  progress.on_evaluation({.step = 1, .loss = 2.25, .seconds = 1, .accuracy = 0.875});
  EXPECT_THAT(out.str(), EndsWith("validation loss 2.2500  accuracy 0.8750\n"));
}

TEST(Progress, TerminalLineIsOverwritten) {
  std::ostringstream out;
  Progress progress(out, {.steps = 10, .terminal = true});
  progress.on_step(report_at(1, 0.1));
  progress.on_step(report_at(2, 0.2));
  EXPECT_EQ(lines_in(out), 0);
  EXPECT_THAT(out.str(), StartsWith("\r\x1b[K\x1b[?7lstep  1/10")) << "never a second line on the screen";
  EXPECT_THAT(out.str(), HasSubstr("left\x1b[?7h\r\x1b[K\x1b[?7lstep  2/10"));
}

TEST(Progress, TerminalKeepsEvaluationsAndEndsItsLine) {
  std::ostringstream out;
  {
    Progress progress(out, {.steps = 10, .terminal = true});
    progress.on_step(report_at(1, 0.1));
    progress.on_evaluation({.step = 1, .loss = 2.25, .seconds = 1});
    EXPECT_EQ(lines_in(out), 1);
    progress.on_step(report_at(2, 0.2));
  }
  EXPECT_EQ(lines_in(out), 2);
}

TEST(Progress, ColorIsAskedFor) {
  std::ostringstream plain;
  std::ostringstream colored;
  Progress(plain, {.steps = 10, .terminal = true}).on_evaluation({.step = 1, .loss = 2.25});
  Progress(colored, {.steps = 10, .terminal = true, .color = true}).on_evaluation({.step = 1, .loss = 2.25});
  EXPECT_THAT(plain.str(), Not(HasSubstr("\x1b[1m")));
  EXPECT_THAT(colored.str(), HasSubstr("\x1b[1mvalidation loss 2.2500\x1b[0m"));
}

TEST(Progress, NothingIsPrintedForNothing) {
  std::ostringstream out;
  { Progress progress(out, {.steps = 10, .terminal = true}); }
  EXPECT_EQ(out.str(), "");
}

TEST(Progress, NamesAGroupThatIsLateForLong) {
  std::ostringstream out;
  Progress progress(out, {.steps = 400});
  progress.on_absence({.step = 40, .group = 2, .missed = 5});
  progress.on_absence({.step = 80, .group = 2, .missed = 15, .is_back = true});
  EXPECT_EQ(out.str(),
            "step  40/400  group 2 is late: 5 outer steps in a row without it\n"
            "step  80/400  group 2 takes part again, after 15 outer steps in a row without it\n");
}

}  // namespace
}  // namespace narrowcast::reporting

#include "trainer/train/reporting/metrics.h"

#include <c10/util/Exception.h>
#include <gtest/gtest.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cmath>
#include <filesystem>
#include <fstream>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include <narrowcast/errors.h>
#include "tests/support/error_message.h"
#include "tests/support/temporary_folder.h"

namespace narrowcast::reporting {
namespace {

std::vector<nlohmann::json> lines_of(const std::string& path) {
  std::ifstream file(path);
  std::vector<nlohmann::json> lines;
  for (std::string line; std::getline(file, line);) {
    lines.push_back(nlohmann::json::parse(line));
  }
  return lines;
}

TEST(Metrics, WritesOneObjectPerReport) {
  const testing::TemporaryFolder folder;
  const std::string path = folder / "metrics.jsonl";
  {
    Metrics metrics(path);
    metrics.on_start({{"steps", 10}});
    StepReport step;
    step.step = 5;
    step.loss = 2.5;
    step.learning_rate = 1e-3;
    step.units_per_second = 100;
    step.seconds = 0.5;
    step.payload_bytes_sent = 4096;
    step.measuring_bytes_sent = 1024;
    step.skipped_steps = 2;
    metrics.on_step(step);
    step.skipped = SkippedReport{.nonfinite_ranks = {1, 3}, .in_a_row = 1};
    step.gradient_norm = 0.75;
    step.compression = 3.5;
    step.peak_memory_bytes = 5000000000;
    step.exchange = ExchangeReport{.seconds = 0.0625, .share = 0.125, .slowest_rank = 3, .waiting_share = 0.25};
    metrics.on_step(step);
    metrics.on_buckets(
        {.step = 5, .chosen = {2, 3, 0.25}, .backward_seconds = 1.5, .sizes = {{1, 5, 0.5}, {2, 3, 0.25}}});
    metrics.on_shares({.step = 8, .samples = {24, 8}, .seconds_per_sample = {0.25, 0.75}});
    metrics.on_evaluation({.step = 10, .loss = 2.25, .seconds = 1});
    metrics.on_end({{"replicas_identical", true}});
  }
  const std::vector<nlohmann::json> expected = {
      {{"event", "start"}, {"steps", 10}},
      {{"event", "step"},
       {"step", 5},
       {"loss", 2.5},
       {"learning_rate", 1e-3},
       {"units_per_second", 100.0},
       {"seconds", 0.5},
       {"payload_bytes_sent", 4096},
       {"measuring_bytes_sent", 1024},
       {"skipped_steps", 2}},
      {{"event", "step"},
       {"step", 5},
       {"loss", 2.5},
       {"learning_rate", 1e-3},
       {"units_per_second", 100.0},
       {"seconds", 0.5},
       {"payload_bytes_sent", 4096},
       {"measuring_bytes_sent", 1024},
       {"skipped_steps", 2},
       {"nonfinite_ranks", {1, 3}},
       {"gradient_norm", 0.75},
       {"compression", 3.5},
       {"peak_memory_bytes", 5000000000},
       {"exchange_seconds", 0.0625},
       {"slowest_rank", 3},
       {"waiting_share", 0.25}},
      {{"event", "buckets"},
       {"step", 5},
       {"bucket_cap_mb", 2.0},
       {"buckets", 3},
       {"seconds_left", 0.25},
       {"backward_seconds", 1.5},
       {"sizes",
        {{{"bucket_cap_mb", 1.0}, {"buckets", 5}, {"seconds_left", 0.5}},
         {{"bucket_cap_mb", 2.0}, {"buckets", 3}, {"seconds_left", 0.25}}}}},
      {{"event", "shares"}, {"step", 8}, {"samples", {24, 8}}, {"seconds_per_sample", {0.25, 0.75}}},
      {{"event", "evaluation"}, {"step", 10}, {"validation_loss", 2.25}, {"seconds", 1.0}},
      {{"event", "end"}, {"replicas_identical", true}},
  };
  EXPECT_EQ(lines_of(path), expected);
}

TEST(Metrics, LinesAreThereAtOnce) {
  const testing::TemporaryFolder folder;
  const std::string path = folder / "metrics.jsonl";
  Metrics metrics(path);
  metrics.on_evaluation({.step = 1, .loss = std::nan("")});
  const auto lines = lines_of(path);
  ASSERT_EQ(lines.size(), 1U);
  EXPECT_EQ(lines[0]["validation_loss"], "NaN");
  EXPECT_FALSE(lines[0].contains("validation_accuracy"));
  metrics.on_evaluation({.step = 1, .loss = 1, .accuracy = 0.5});
  EXPECT_EQ(lines_of(path).at(1)["validation_accuracy"], 0.5);
}

TEST(ReadMetrics, GivesTheWholeLines) {
  const testing::TemporaryFolder folder;
  const std::string path = folder.write("metrics.jsonl", "{\"event\":\"start\"}\n7\n{\"event\":\"end\"}\n{\"eve");
  EXPECT_EQ(read_metrics(path), (std::vector<nlohmann::json>{{{"event", "start"}}, {{"event", "end"}}}));
  EXPECT_THROW(read_metrics(folder / "none"), c10::ValueError);
}

TEST(TruncateMetrics, TakesOutALineThatIsTooDeep) {
  const testing::TemporaryFolder folder;
  const std::string path =
      folder.write("metrics.jsonl", "{\"event\":\"start\"}\n{\"event\":" + std::string(60'000, '[') +
                                        std::string(60'000, ']') + "}\n{\"event\":\"step\",\"step\":1}\n");
  EXPECT_FALSE(metrics_have_ended(path));
  EXPECT_TRUE(truncate_metrics(path, 5));
  EXPECT_EQ(lines_of(path).size(), 2u);
}

TEST(TruncateMetrics, NamesAFileThatHasNoLines) {
  const testing::TemporaryFolder folder;
  const std::string path = folder.write("metrics.jsonl", "{\"event\":\"start\"}\n");
  ASSERT_EQ(::truncate(path.c_str(), int64_t{1} << 43), 0);  // A sparse file.
  const std::string expected = path + ": has a line of more than 16777216 bytes";
  EXPECT_EQ(testing::error_message<CorruptInputError>([&] { metrics_have_ended(path); }), expected);
  EXPECT_EQ(testing::error_message<CorruptInputError>([&] { truncate_metrics(path, 5); }), expected);
  EXPECT_EQ(folder.entries(), 1) << "nothing unfinished stays";
}

// Lines that cross the borders of the blocks read.
TEST(TruncateMetrics, ReadsLinesOfAnyLength) {
  const testing::TemporaryFolder folder;
  const std::string plan(3'000'000, 'x');
  std::string text = "{\"event\":\"start\",\"plan\":\"" + plan + "\"}\n";
  for (int step = 1; step <= 30'000; ++step) {
    text += "{\"event\":\"step\",\"step\":" + std::to_string(step) + "}\n";
  }
  const std::string path = folder.write("metrics.jsonl", text + "{\"event\":\"e");
  EXPECT_FALSE(metrics_have_ended(path));
  EXPECT_TRUE(truncate_metrics(path, 29'999));
  const auto lines = lines_of(path);
  ASSERT_EQ(lines.size(), 30'000U);
  EXPECT_EQ(lines.front()["plan"], plan);
  EXPECT_EQ(lines.back()["step"], 29'999);
}

TEST(TruncateMetrics, ReadsARegularFileOnly) {
  const testing::TemporaryFolder folder;
  const std::string path = folder / "metrics.jsonl";
  ASSERT_EQ(::mkfifo(path.c_str(), 0600), 0);  // has no writer: reading would wait for ever
  EXPECT_THROW(metrics_have_ended(path), c10::ValueError);
  EXPECT_THROW(truncate_metrics(path, 5), c10::ValueError);
  std::filesystem::remove(path);
  std::filesystem::create_symlink(folder.write("other", "{}\n"), path);
  EXPECT_THROW(metrics_have_ended(path), c10::ValueError);
  EXPECT_THROW(truncate_metrics(path, 5), c10::ValueError);
  std::filesystem::remove(path);
  std::filesystem::create_symlink(folder / "nowhere", path);
  EXPECT_THROW(truncate_metrics(path, 5), c10::ValueError);
}

TEST(MetricsAreOf, TellsWhoseTheFirstStartIs) {
  const testing::TemporaryFolder folder;
  EXPECT_FALSE(metrics_are_of(folder / "none", "run"));
  const auto are_own = [&](const std::string& lines) { return metrics_are_of(folder.write("m.jsonl", lines), "run"); };
  EXPECT_FALSE(are_own(""));
  EXPECT_FALSE(are_own("{\"event\":\"start\"}\n"));
  EXPECT_TRUE(are_own("{\"event\":\"start\",\"run_id\":\"run\"}\n{\"event\":\"st"));
  EXPECT_FALSE(are_own("{\"event\":\"start\",\"run_id\":7}\n"));
  EXPECT_FALSE(are_own("{\"event\":\"start\",\"run_id\":\"other\"}\n{\"event\":\"start\",\"run_id\":\"run\"}\n"));
}

TEST(Metrics, NamesAPathThatCannotBeWritten) {
  EXPECT_THROW(Metrics("/nonexistent/folder/metrics.jsonl"), c10::ValueError);
}

TEST(TruncateMetrics, LeavesWhatWasBeforeTheStep) {
  const testing::TemporaryFolder folder;
  const std::string path = folder / "metrics.jsonl";
  EXPECT_FALSE(truncate_metrics(path, 5));
  EXPECT_FALSE(metrics_have_ended(path));
  folder.write("metrics.jsonl",
               R"({"event":"start","steps":10}
{"event":"step","step":5}
{"event":"checkpoint","step":5}
{"event":"step","step":6}
{"event":"recovery","step":6}
{"event":"end","training_loss":1}
{"event":"resume","step":4}
{"event":"ste)");
  EXPECT_TRUE(metrics_have_ended(path));
  EXPECT_TRUE(truncate_metrics(path, 5));
  EXPECT_FALSE(metrics_have_ended(path));
  const std::vector<nlohmann::json> expected = {{{"event", "start"}, {"steps", 10}},
                                                {{"event", "step"}, {"step", 5}},
                                                {{"event", "checkpoint"}, {"step", 5}},
                                                {{"event", "recovery"}, {"step", 6}},
                                                {{"event", "resume"}, {"step", 4}}};
  EXPECT_EQ(lines_of(path), expected);
  Metrics metrics(path, files::JsonLinesMode::kAppend);
  metrics.on_resume({.step = 5, .path = "c", .changes = "ranks (3, was 2)"});
  metrics.on_checkpoint({.step = 6, .path = "d", .bytes = 7, .seconds = 0.5});
  metrics.on_recovery({.step = 7, .lost_ranks = {0}});
  metrics.on_recovery({.step = 8, .lost_ranks = {1, 2}, .lost_residuals = 2, .seconds = 0.5});
  const std::vector<nlohmann::json> lines = lines_of(path);
  ASSERT_EQ(lines.size(), 9U);
  EXPECT_EQ(lines[5],
            nlohmann::json({{"event", "resume"}, {"step", 5}, {"path", "c"}, {"changes", "ranks (3, was 2)"}}));
  EXPECT_EQ(lines[6],
            nlohmann::json({{"event", "checkpoint"}, {"step", 6}, {"path", "d"}, {"bytes", 7}, {"seconds", 0.5}}));
  EXPECT_EQ(lines[7], nlohmann::json({{"event", "recovery"}, {"step", 7}, {"ranks", 1}, {"lost_ranks", {0}}}));
  EXPECT_EQ(lines[8], nlohmann::json({{"event", "recovery"},
                                      {"step", 8},
                                      {"ranks", 1},
                                      {"lost_ranks", {1, 2}},
                                      {"lost_residuals", 2},
                                      {"seconds", 0.5}}));
}

}  // namespace
}  // namespace narrowcast::reporting

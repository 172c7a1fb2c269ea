#include "trainer/train/job/training_results.h"

#include <gtest/gtest.h>

namespace narrowcast::job {
namespace {

TEST(ResultsOf, HaveOnlyWhatTheTrainingMeasured) {
  const nlohmann::json results = results_of(
      {.result = {.training_loss = 2, .payload_bytes_sent = 30, .skipped_steps = 4}, .replicas_identical = true});
  EXPECT_EQ(results.at("training_loss"), 2);
  EXPECT_EQ(results.at("payload_bytes_sent"), 30);
  EXPECT_EQ(results.at("skipped_steps"), 4);
  EXPECT_EQ(results.at("replicas_identical"), true);
  for (const char* absent : {"validation_loss", "validation_accuracy", "compression", "peak_memory_bytes",
                             "best_validation_loss", "stopped_early_at"}) {
    EXPECT_FALSE(results.contains(absent)) << absent;
  }
}

TEST(ResultsOf, HaveTheResultsOfEvaluationsAndOfAnEarlyEnd) {
  const nlohmann::json results = results_of({.result = {.validation_loss = 1.5,
                                                        .validation_accuracy = 0.25,
                                                        .compression = 3.9,
                                                        .peak_memory_bytes = 700,
                                                        .best_validation_loss = 1.25,
                                                        .stopped_early_at = 60},
                                             .replicas_identical = false});
  EXPECT_EQ(results.at("validation_loss"), 1.5);
  EXPECT_EQ(results.at("validation_accuracy"), 0.25);
  EXPECT_EQ(results.at("compression"), 3.9);
  EXPECT_EQ(results.at("peak_memory_bytes"), 700);
  EXPECT_EQ(results.at("best_validation_loss"), 1.25);
  EXPECT_EQ(results.at("stopped_early_at"), 60);
  EXPECT_EQ(results.at("replicas_identical"), false);
}

}  // namespace
}  // namespace narrowcast::job

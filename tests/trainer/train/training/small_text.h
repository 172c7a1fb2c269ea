// A small text, models for it with one replica per rank, and options for a short training.
#pragma once

#include <ATen/Context.h>

#include <memory>
#include <string>
#include <vector>

#include <narrowcast/char_gpt.h>
#include "ops/common/text.h"
#include "trainer/train/data/text_dataset.h"
#include "trainer/train/training/training_options.h"

namespace narrowcast::testing {

inline constexpr int64_t kSmallContext = 8;

// Some 3,000 characters with a pattern that a small model learns in a few steps.
inline std::string verse() {
  std::string text;
  for (int line = 0; line < 150; ++line) {
    text += "line " + std::to_string(line % 10) + " of a verse\n";
  }
  return text;
}

inline data::TextDataset small_text() {
  return data::TextDataset(data::TextCorpus(decode_utf8(verse()).code_points, "verse"), kSmallContext);
}

// Created before the threads, which share LibTorch's default generator.
inline std::vector<std::shared_ptr<models::Model>> small_models(int64_t count, uint64_t seed = 1) {
  std::vector<std::shared_ptr<models::Model>> models;
  const int64_t vocabulary_size = small_text().corpus().vocabulary().size();
  for (int64_t i = 0; i < count; ++i) {
    at::manual_seed(seed);
    models.push_back(std::make_shared<models::CharGpt>(models::CharGptOptions{
        .layers = 1, .heads = 2, .width = 16, .context = kSmallContext, .vocabulary_size = vocabulary_size}));
  }
  return models;
}

inline training::TrainingOptions small_training() {
  training::TrainingOptions options;
  options.steps = 6;
  options.batch_size = 12;
  options.eval_batches = 1;
  options.log_every = 2;
  return options;
}

}  // namespace narrowcast::testing

// The model and the data of an evaluation.
#pragma once

#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include <narrowcast/generation.h>
#include <narrowcast/model.h>
#include "trainer/train/data/dataset.h"
#include "trainer/train/evaluation/evaluation_job.h"

namespace narrowcast::evaluation {

// A model out of a file, in evaluation mode.
struct LoadedModel {
  std::shared_ptr<models::Model> model;
  std::string name;                            // "char_gpt" or "mlp"
  std::vector<std::string> vocabulary = {};    // of a text model, if the file holds it
  std::vector<at::Tensor> state = {};          // parameters and buffers
  std::optional<models::NextToken> next = {};  // of a text model
};

// By the suffix of job.file. Throws c10::ValueError for another suffix, a file that cannot be read or a model that
// cannot be evaluated, CorruptInputError for a file that is not what its suffix says.
LoadedModel load_for_evaluation(const EvaluationJob& job);

// What the model is evaluated on.
struct EvaluationData {
  std::unique_ptr<data::Dataset> dataset = {};
  std::string name;                           // what was read, for people
  uint64_t hash = 0;                          // of its content
  std::vector<std::string> vocabulary = {};   // of a text: the model's, or the text's own if the model has none
  std::optional<double> bigram_entropy = {};  // of a text, in nats
};

// Reads job.data in the model's vocabulary. Errors as in job::make_inputs; also c10::ValueError for a character that
// the model does not know.
EvaluationData read_data(const EvaluationJob& job, const LoadedModel& loaded);

}  // namespace narrowcast::evaluation

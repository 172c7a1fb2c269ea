// Samples: a data set and how it is read, the order in which a run uses it, and which part of each global batch a rank
// computes.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include <narrowcast/model.h>
#include "models/model_table.h"

namespace narrowcast::data {

// Training and held-out samples, each addressed by its index, so that every rank can make any part of
// any batch from the data alone. Immutable after construction and so safe to use from several threads.
class Dataset {
 public:
  virtual ~Dataset() = default;

  // Number of training samples and of held-out samples, both at least 1.
  virtual int64_t training_size() const = 0;
  virtual int64_t held_out_size() const = 0;

  // The samples of the given indices as one batch, in their order. Indices may repeat. Throws
  // c10::ValueError for no indices or one that is not in 0..size-1.
  virtual models::Batch training_batch(at::IntArrayRef indices) const = 0;
  virtual models::Batch held_out_batch(at::IntArrayRef indices) const = 0;

  // All targets are in 0..class_bound()-1. None: they are no integers. Reads all targets, but those of token files,
  // which are compared where a batch is read. Throws CorruptInputError naming file and byte of one below 0.
  virtual std::optional<int64_t> class_bound() const = 0;
};

// Throws c10::ValueError unless there are indices and each is in 0..size-1.
void check_indices(at::IntArrayRef indices, int64_t size);

// Data to read.
struct DataRequest {
  std::string model;                         // the name of the model that they are for (models::any_model_row)
  std::vector<std::string> paths;            // files and folders; empty: Tiny Shakespeare
  std::vector<std::string> vocabulary = {};  // that of a trained model of text; empty: the text's own
  // Of token files: all tokens are below it. Not given: the greatest token plus one; for a module it must be given.
  std::optional<int64_t> vocabulary_size = {};
};

// Data as they were read.
struct ReadData {
  std::unique_ptr<Dataset> dataset = {};
  std::string name;                           // what was read, for people
  uint64_t hash = 0;                          // of its content
  std::vector<std::string> vocabulary = {};   // of a text, else empty
  std::optional<double> bigram_entropy = {};  // of a text, in nats
};

// What a model of that name learns from: a bundled one what it takes, a TorchScript module what the paths are
// (format_of, data_folder.h): text and token files are text, all else is images. Throws as format_of does, and
// c10::ValueError naming model and folder if a bundled one does not take what is in the folder.
models::DataKind data_kind(const std::string& model, const std::vector<std::string>& paths);

// Whether the paths are one folder of token files. Throws as format_of does.
bool holds_tokens(const std::vector<std::string>& paths);

// Is told the model's options that the data decide, as soon as they are known; a module has none. Returns the length of
// the samples of a text; of images what it returns is of no account.
using FitModel = std::function<int64_t(const models::ModelOptions& sizes)>;

// Reads what a model learns from, which files of tokens and tensors are as they are used. Without paths, the
// text is the file at default_text_path() (text_corpus.h). Throws c10::ValueError naming what is wrong with a name, a
// path or a character that is not in the vocabulary, and CorruptInputError for data that is not what it should be.
ReadData read_data(const DataRequest& request, const FitModel& fit);

// Position k of a run's global order of samples is sample at(k): each epoch of `size` positions is a
// permutation of all samples of its own, chosen by the seed and the epoch. Nothing is stored per
// sample or per position, so any rank of any world can start or resume anywhere.
//
// The permutation: a Feistel network of eight rounds over the smallest even number of bits that holds
// `size` values; results outside 0..size-1 are put through it again until they fall inside (cycle
// walking; at most four passes on average).
class SampleOrder {
 public:
  // Throws c10::ValueError for size < 1.
  SampleOrder(int64_t size, uint64_t seed);

  int64_t size() const { return size_; }

  // The sample at a position >= 0 of the run. Throws c10::ValueError for a negative position.
  int64_t at(int64_t position) const;

 private:
  uint64_t permute(uint64_t value, uint64_t epoch_key) const;

  int64_t size_;
  uint64_t seed_;
  int half_bits_;
};

// How a global batch is shared out.
struct BatchPlanOptions {
  int64_t global_batch = 1;        // samples per optimizer step, over all ranks and micro-steps
  int64_t world_size = 1;          // ranks
  int64_t accumulation_steps = 1;  // forward/backward passes per optimizer step on each rank
};

// Whether every rank gets equally many samples of a global batch, and so does every micro-step of it. All values are at
// least 1.
bool divides_evenly(const BatchPlanOptions& options);

// The samples of a global batch that are one rank's, where it divides evenly.
inline int64_t samples_per_rank(const BatchPlanOptions& options) { return options.global_batch / options.world_size; }

// Step s of a run uses the positions s * global_batch .. (s + 1) * global_batch - 1 of the sample order,
// whatever the world size. They are cut into world_size equal contiguous parts, rank r's being the r-th, and
// each of these into accumulation_steps equal contiguous micro-batches. All micro-batches have one size, so
// the mean over ranks and micro-steps of their mean losses is the mean over the global batch.
class BatchPlan {
 public:
  // Throws c10::ValueError for a value below 1, or unless divides_evenly(options).
  explicit BatchPlan(const BatchPlanOptions& options);

  const BatchPlanOptions& options() const { return options_; }

  // Samples per forward pass of one rank.
  int64_t micro_batch() const { return micro_batch_; }

  // Samples of micro-step `micro_step` (0..accumulation_steps-1) of optimizer step `step` (>= 0) on rank `rank`:
  // micro_batch() indices of a training set. Throws c10::ValueError for a value out of its range.
  std::vector<int64_t> samples(const SampleOrder& order, int64_t rank, int64_t step, int64_t micro_step) const;

 private:
  BatchPlanOptions options_;
  int64_t micro_batch_;
};

}  // namespace narrowcast::data

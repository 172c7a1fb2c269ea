// Samples: a data set and how it is read, the order in which a run uses it, and each rank's part of a global batch.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include <narrowcast/model.h>
#include "models/table/model_table.h"

namespace narrowcast::data {

// Training and held-out samples, each addressed by its index, so that every rank can make any part of any batch from
// the data alone. Immutable after construction and therefore safe to use from several threads.
class Dataset {
 public:
  virtual ~Dataset() = default;

  // Number of training samples and of held-out samples, both at least 1.
  virtual int64_t training_size() const = 0;
  virtual int64_t held_out_size() const = 0;

  // The samples of the given indices as one batch, in the indices' order. Indices may repeat. Throws c10::ValueError if
  // there are no indices or one is not in 0..size-1.
  virtual models::Batch training_batch(at::IntArrayRef indices) const = 0;
  virtual models::Batch held_out_batch(at::IntArrayRef indices) const = 0;

  // All targets are in 0..class_bound()-1. Empty if they are not integers. Reads all targets, except those of token
  // files, which are checked when a batch is read. Throws CorruptInputError naming file and byte of a target below 0.
  virtual std::optional<int64_t> class_bound() const = 0;
};

// Throws c10::ValueError unless there are indices and each is in 0..size-1.
void check_indices(at::IntArrayRef indices, int64_t size);

// A request to read data.
struct DataRequest {
  std::string model;                         // the name of the model that will use the data (models::any_model_row)
  std::vector<std::string> paths;            // files and folders; empty: Tiny Shakespeare
  std::vector<std::string> vocabulary = {};  // of a trained text model; empty: the text's own
  // For token files: the bound of all tokens. If absent: the greatest token plus one. A module requires it.
  std::optional<int64_t> vocabulary_size = {};
};

// The data that were read.
struct ReadData {
  std::unique_ptr<Dataset> dataset = {};
  std::string name;                           // of the source, for people
  uint64_t hash = 0;                          // of its content
  std::vector<std::string> vocabulary = {};   // of a text, else empty
  std::optional<double> bigram_entropy = {};  // of a text, in nats
};

// The kind of data for a model of that name: for a bundled model the kind that it takes, for a TorchScript module the
// kind of the paths (format_of, data_folder.h). Text and token files are text, everything else is images. Throws as
// format_of does, and c10::ValueError naming model and folder if a bundled model does not take the folder's data.
models::DataKind data_kind(const std::string& model, const std::vector<std::string>& paths);

// Whether the paths are one folder of token files. Throws as format_of does.
bool holds_tokens(const std::vector<std::string>& paths);

// Called with the model's options that the data determine, as soon as they are known; a module has none. Returns the
// sample length of a text; for images the result is ignored.
using FitModel = std::function<int64_t(const models::ModelOptions& sizes)>;

// Reads a model's data. Files of tokens and tensors are mapped, and read when they are used. Without paths, the text is
// the file at default_text_path() (text_corpus.h). Throws c10::ValueError with the error in a name, a path or a
// character that is not in the vocabulary, and CorruptInputError for data that is malformed.
ReadData read_data(const DataRequest& request, const FitModel& fit);

// Position k of a run's global order of samples is sample at(k). Each epoch of `size` positions is a separate
// permutation of all samples, which seed and epoch determine. Nothing is stored per sample or per position, so any rank
// of any world can start or resume anywhere.
//
// The permutation is a Feistel network of eight rounds over the smallest even number of bits that holds `size` values.
// Results outside 0..size-1 are permuted again until they are inside (cycle walking; at most four passes on average).
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

// How a global batch is divided.
struct BatchPlanOptions {
  int64_t global_batch = 1;        // samples per optimizer step, over all ranks and micro-steps
  int64_t world_size = 1;          // ranks
  int64_t accumulation_steps = 1;  // forward/backward passes per optimizer step on each rank
  // The samples of each rank, together global_batch, each at least accumulation_steps. Empty: all ranks have as many.
  std::vector<int64_t> shares = {};
};

// Whether a global batch can give every rank, and every micro-step, the same number of samples. All values must be at
// least 1.
bool divides_evenly(const BatchPlanOptions& options);

// One rank's number of samples of a global batch that divides evenly.
inline int64_t samples_per_rank(const BatchPlanOptions& options) { return options.global_batch / options.world_size; }

// Step s of a run uses the positions s * global_batch .. (s + 1) * global_batch - 1 of the sample order, for any world
// size and any shares. They are divided into world_size contiguous parts, of which rank r gets the r-th. Each part is
// divided into accumulation_steps contiguous micro-batches, whose sizes differ by at most one sample.
//   - is_even(): all micro-batches have the same size, so the mean over ranks and micro-steps of their mean losses is
//     the mean over the global batch.
//   - Else that is the sum over ranks and micro-steps of weight() times the mean loss.
class BatchPlan {
 public:
  // Throws c10::ValueError for a value below 1, for wrong shares and, without shares, unless divides_evenly(options).
  explicit BatchPlan(const BatchPlanOptions& options);

  const BatchPlanOptions& options() const { return options_; }

  bool is_even() const { return is_even_; }

  // Samples per forward pass of one rank if is_even(); else their mean over the ranks, rounded down, at least 1.
  int64_t micro_batch() const { return micro_batch_; }

  // The samples of micro-step `micro_step` (0..accumulation_steps-1) of optimizer step `step` (>= 0) on rank `rank`:
  // indices of a training set. Throws c10::ValueError for a value out of its range.
  std::vector<int64_t> samples(const SampleOrder& order, int64_t rank, int64_t step, int64_t micro_step) const;

  // The number of these samples divided by the global batch.
  double weight(int64_t rank, int64_t micro_step) const;

 private:
  int64_t offset(int64_t rank, int64_t micro_step) const;

  BatchPlanOptions options_;
  std::vector<int64_t> first_;  // of each rank in the global batch, and the end
  bool is_even_;
  int64_t micro_batch_;
};

}  // namespace narrowcast::data

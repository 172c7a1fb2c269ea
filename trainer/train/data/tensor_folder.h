// Samples of any kind: a tensor of inputs and one of targets, in safetensors or NPY files.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "trainer/train/data/data_folder.h"
#include "trainer/train/data/dataset.h"
#include "trainer/train/files/mapped_file.h"

namespace narrowcast::data {

// A part's samples in one file or pair of files: sample i is the i-th input and the i-th target.
struct TensorShard {
  files::MappedTensor inputs;
  files::MappedTensor targets;
};

// The shards of training or of validation, one after the other.
class TensorPart {
 public:
  // Throws CorruptInputError naming the file if, in a shard, the numbers of inputs and targets differ, a tensor's dtype
  // or sample shape is not the first shard's, or a sample has no numbers. Names the first file if there are no samples.
  explicit TensorPart(std::vector<TensorShard> shards);

  const std::vector<TensorShard>& shards() const { return shards_; }
  int64_t size() const { return ends_.back(); }

  // The samples of the given indices, in the files' dtypes. Throws as check_indices does, and CorruptInputError naming
  // file and byte of a bool that is neither 0 nor 1.
  models::Batch samples(at::IntArrayRef indices) const;

 private:
  std::vector<TensorShard> shards_;
  std::vector<int64_t> ends_;  // samples in the shards up to and including each one
};

// The files of a folder in one of two formats:
//   - kSafetensors: each file contains the tensors `inputs` and `targets`; other tensors are ignored.
//   - kNpy: train_inputs.npy and train_targets.npy, validation_inputs.npy and validation_targets.npy.
//
// In a batch, float inputs are float32, uint8 and bool inputs keep their dtype, and other integer inputs are int64.
// Float targets are float32, all others int64. The files are mapped: only samples in use are read.
class TensorFolder : public Dataset {
 public:
  // Throws as list_files, files::map_safetensors, files::map_npy and TensorPart do. Also throws CorruptInputError
  // naming file and tensor if a tensor is missing or of uint64, or if dtypes or shapes of validation and training
  // differ.
  TensorFolder(const std::string& folder, DataFormat format)
      : TensorFolder(folder, format, list_files(folder, format)) {}

  // Returns the hash of all files (files::sampled_hash).
  uint64_t content_hash() const;

  // The number of values of a sample's inputs.
  int64_t inputs_per_sample() const;
  // The bound of classes. Throws as class_bound does, and c10::ValueError naming the folder unless each target is one
  // integer.
  int64_t classes() const;
  // Whether a classifier takes the inputs, that is uint8 or floats.
  bool has_pixels() const;

  int64_t training_size() const override { return training_.size(); }
  int64_t held_out_size() const override { return validation_.size(); }
  models::Batch training_batch(at::IntArrayRef indices) const override;
  models::Batch held_out_batch(at::IntArrayRef indices) const override;
  std::optional<int64_t> class_bound() const override;

 private:
  TensorFolder(const std::string& folder, DataFormat format, const DataFiles& files);

  std::string name_;
  TensorPart training_;
  TensorPart validation_;
};

}  // namespace narrowcast::data

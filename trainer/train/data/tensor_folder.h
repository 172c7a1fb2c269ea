// Samples of any kind: a tensor of inputs and one of targets, in safetensors files or in numpy's.
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

// Some of the samples of a part: as many inputs as targets, sample i being the i-th of both.
struct TensorShard {
  files::MappedTensor inputs;
  files::MappedTensor targets;
};

// The shards of training or of validation, one after the other.
class TensorPart {
 public:
  // Throws CorruptInputError naming the file if a shard's inputs and targets are not equally many, one of them is not
  // of the dtype or, sample for sample, of the shape of the first shard's, or holds no number per sample, and naming
  // the first file if there are no samples.
  explicit TensorPart(std::vector<TensorShard> shards);

  const std::vector<TensorShard>& shards() const { return shards_; }
  int64_t size() const { return ends_.back(); }

  // The samples of the given indices, in the files' dtypes. Throws as check_indices does, and CorruptInputError naming
  // file and byte for a bool that is neither 0 nor 1.
  models::Batch samples(at::IntArrayRef indices) const;

 private:
  std::vector<TensorShard> shards_;
  std::vector<int64_t> ends_;  // samples in the shards up to and including each one
};

// The files of a folder in one of two formats. kSafetensors: each file holds the tensors `inputs` and `targets`; others
// in it are left alone. kNpy: train_inputs.npy and train_targets.npy, validation_inputs.npy and validation_targets.npy.
// Batches have float inputs as float32, uint8 and bool ones as they are, and all other integers as int64; float targets
// as float32, all others as int64. The files are mapped: what is read is what is used.
class TensorFolder : public Dataset {
 public:
  // Throws as list_files, files::map_safetensors, files::map_npy and TensorPart do, and CorruptInputError naming file
  // and name if a tensor is missing or of uint64, or if validation has other dtypes or shapes than training.
  TensorFolder(const std::string& folder, DataFormat format)
      : TensorFolder(folder, format, list_files(folder, format)) {}

  // Returns the hash of all files (files::sampled_hash).
  uint64_t content_hash() const;

  // Numbers per sample of the inputs.
  int64_t inputs_per_sample() const;
  // The bound of classes. Throws as class_bound does, and c10::ValueError naming the folder unless they are one integer
  // per sample.
  int64_t classes() const;
  // Whether a classifier takes the inputs: uint8 or floats.
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

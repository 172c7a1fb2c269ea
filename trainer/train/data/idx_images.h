// Labelled images in IDX files, the format of MNIST (http://yann.lecun.com/exdb/mnist).
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <optional>
#include <string>

#include "trainer/train/data/dataset.h"

namespace narrowcast::data {

// An idx3-ubyte file: uint8 [N, height, width] with N, height and width >= 1. Throws c10::ValueError naming the path if
// it cannot be read or is still compressed (gzip), and CorruptInputError if magic number, sizes and length are
// inconsistent.
at::Tensor read_idx_images(const std::string& path);

// An idx1-ubyte file: int64 [N], N >= 1. Errors as above, and CorruptInputError naming the index and the value of
// a label that is not in 0..classes-1.
at::Tensor read_idx_labels(const std::string& path, int64_t classes);

// The number of values of a byte.
inline constexpr int64_t kAnyIdxClasses = 256;

// The files' folder, and the bound of their labels.
struct IdxImagesOptions {
  std::string folder;    // with the four files that IdxImages names
  int64_t classes = 10;  // labels are in 0..classes-1; 1..kAnyIdxClasses
};

// Training samples from train-images-idx3-ubyte and train-labels-idx1-ubyte, held-out ones from
// t10k-images-idx3-ubyte and t10k-labels-idx1-ubyte. Batches have inputs uint8 [B, height, width] and
// targets int64 [B].
class IdxImages : public Dataset {
 public:
  // Throws as the readers above do. Also throws CorruptInputError if the number of labels is not the number of images,
  // or training and held-out images differ in size.
  explicit IdxImages(const IdxImagesOptions& options);

  // Returns the hash of all images and labels (base/files/hash.h).
  uint64_t content_hash() const;
  // Pixels per image.
  int64_t pixels() const;
  int64_t classes() const { return classes_; }

  int64_t training_size() const override { return training_.labels.size(0); }
  int64_t held_out_size() const override { return held_out_.labels.size(0); }
  models::Batch training_batch(at::IntArrayRef indices) const override;
  models::Batch held_out_batch(at::IntArrayRef indices) const override;
  std::optional<int64_t> class_bound() const override;

 private:
  struct Part {
    at::Tensor images;
    at::Tensor labels;
  };
  static Part read_part(const IdxImagesOptions& options, const std::string& name);
  static models::Batch batch(const Part& part, at::IntArrayRef indices);

  int64_t classes_;
  Part training_;
  Part held_out_;
};

}  // namespace narrowcast::data

#include "trainer/train/data/tensor_folder.h"

#include <ATen/ATen.h>
#include <c10/util/Exception.h>

#include <algorithm>
#include <cstring>
#include <filesystem>
#include <map>
#include <string_view>
#include <utility>

#include <narrowcast/errors.h>
#include "trainer/base/files/hash.h"
#include "trainer/train/files/npy.h"
#include "trainer/train/files/safetensors.h"

namespace narrowcast::data {
namespace {

using files::at_byte;
using files::MappedTensor;

constexpr int64_t kTargetsAtOnce = int64_t{1} << 20;

// The shape without the first dimension, which counts samples.
at::IntArrayRef sample_shape(const MappedTensor& tensor) { return at::IntArrayRef(tensor.shape).slice(1); }

int64_t numbers_per_sample(const MappedTensor& tensor) { return c10::multiply_integers(sample_shape(tensor)); }

int64_t sample_bytes(const MappedTensor& tensor) {
  return numbers_per_sample(tensor) * static_cast<int64_t>(c10::elementSize(tensor.dtype));
}

// Copies samples begin..begin+count-1 to `out`.
void copy_samples(const MappedTensor& tensor, int64_t begin, int64_t count, void* out) {
  const int64_t first = tensor.begin + begin * sample_bytes(tensor);
  const std::string_view bytes =
      tensor.file->bytes().substr(static_cast<size_t>(first), static_cast<size_t>(count * sample_bytes(tensor)));
  if (tensor.dtype == at::kBool) {
    const auto wrong = std::ranges::find_if(bytes, [](char byte) { return byte != 0 && byte != 1; });
    NARROWCAST_CHECK_INPUT(wrong == bytes.end(), at_byte(first + (wrong - bytes.begin()), tensor.path()),
                           "must be 0 or 1, because the tensor has the dtype bool");
  }
  std::memcpy(out, bytes.data(), bytes.size());
}

at::Tensor empty_samples(const MappedTensor& like, int64_t count) {
  std::vector<int64_t> shape = {count};
  shape.insert(shape.end(), sample_shape(like).begin(), sample_shape(like).end());
  return at::empty(shape, like.dtype);
}

// Inputs that modules compute with are float32, and inputs that they look up int64.
at::Tensor as_inputs(const at::Tensor& tensor) {
  const bool is_byte = tensor.scalar_type() == at::kByte || tensor.scalar_type() == at::kBool;
  return is_byte ? tensor : tensor.to(tensor.is_floating_point() ? at::kFloat : at::kLong);
}

at::Tensor as_targets(const at::Tensor& tensor) {
  return tensor.to(tensor.is_floating_point() ? at::kFloat : at::kLong);
}

models::Batch converted(const models::Batch& samples) {
  return {as_inputs(samples.inputs), as_targets(samples.targets)};
}

// The greatest class; 0 without samples.
int64_t greatest_class(const MappedTensor& classes) {
  int64_t greatest = 0;
  const int64_t at_once = std::max<int64_t>(1, kTargetsAtOnce / numbers_per_sample(classes));
  for (int64_t begin = 0; begin < classes.shape[0]; begin += at_once) {
    const at::Tensor some = empty_samples(classes, std::min(at_once, classes.shape[0] - begin));
    copy_samples(classes, begin, some.size(0), some.mutable_data_ptr());
    const at::Tensor targets = as_targets(some).flatten();
    const auto least = targets.argmin().item<int64_t>();
    NARROWCAST_CHECK_INPUT(targets[least].item<int64_t>() >= 0,
                           at_byte(classes.begin + begin * sample_bytes(classes) +
                                       least * static_cast<int64_t>(c10::elementSize(classes.dtype)),
                                   classes.path()),
                           "has the class ", targets[least].item<int64_t>(), ", but classes count from 0");
    greatest = std::max(greatest, targets.max().item<int64_t>());
  }
  return greatest;
}

// Checks a shard by itself: `name` is its tensor's name.
void check_samples(const MappedTensor& tensor, const char* name) {
  NARROWCAST_CHECK_INPUT(!tensor.shape.empty(), at_byte(tensor.begin, tensor.path()), name,
                         " have no dimension, but need a first dimension that counts the samples");
  NARROWCAST_CHECK_INPUT(numbers_per_sample(tensor) >= 1, at_byte(tensor.begin, tensor.path()), name,
                         " have the shape ", at::IntArrayRef(tensor.shape), ", in which a sample has no elements");
}

void check_alike(const MappedTensor& tensor, const MappedTensor& first, const char* name) {
  NARROWCAST_CHECK_INPUT(tensor.dtype == first.dtype && sample_shape(tensor) == sample_shape(first),
                         at_byte(tensor.begin, tensor.path()), name, " are ", tensor.dtype, " of the shape ",
                         sample_shape(tensor), " for each sample, but those of ", first.path(), " are ", first.dtype,
                         " of ", sample_shape(first));
}

void check_alike(const TensorShard& shard, const TensorShard& first) {
  check_alike(shard.inputs, first.inputs, kInputs);
  check_alike(shard.targets, first.targets, kTargets);
}

void check_shard(const TensorShard& shard) {
  check_samples(shard.inputs, kInputs);
  check_samples(shard.targets, kTargets);
  NARROWCAST_CHECK_INPUT(shard.inputs.shape[0] == shard.targets.shape[0],
                         at_byte(shard.targets.begin, shard.targets.path()), "there are ", shard.targets.shape[0],
                         " targets for ", shard.inputs.shape[0], " inputs");
}

MappedTensor take(std::map<std::string, MappedTensor>& tensors, const std::string& path, const char* name) {
  const auto found = tensors.find(name);
  NARROWCAST_CHECK_INPUT(found != tensors.end(), at_byte(8, path), "the header has no tensor '", name, "'");
  NARROWCAST_CHECK_INPUT(found->second.dtype != at::kUInt64, at_byte(found->second.begin, path), "tensor '", name,
                         "' has the dtype U64, whose range exceeds the int64 that modules use");
  NARROWCAST_CHECK_INPUT(!c10::isComplexType(found->second.dtype), at_byte(found->second.begin, path), "tensor '", name,
                         "' has the dtype C64, but complex data is not supported");
  return std::move(found->second);
}

TensorPart open_safetensors(const std::vector<std::string>& paths) {
  std::vector<TensorShard> shards;
  for (const std::string& path : paths) {
    auto tensors = files::map_safetensors(path);
    shards.push_back({.inputs = take(tensors, path, kInputs), .targets = take(tensors, path, kTargets)});
  }
  return TensorPart(std::move(shards));
}

// The path before its ending, if the ending is `tensor`'s.
std::optional<std::string> npy_stem(const std::string& path, const char* tensor) {
  const std::string ending = npy_ending(tensor);
  return path.ends_with(ending) ? std::optional(path.substr(0, path.size() - ending.size())) : std::nullopt;
}

// A shard is one file per tensor; the names of both differ only in their ending.
TensorPart open_npy(const std::vector<std::string>& paths) {
  std::vector<TensorShard> shards;
  for (const std::string& path : paths) {
    const std::optional<std::string> stem = npy_stem(path, kInputs);
    const char* const other = stem ? kTargets : kInputs;
    const std::string partner = stem.value_or(npy_stem(path, kTargets).value_or("")) + npy_ending(other);
    NARROWCAST_CHECK_INPUT(std::ranges::find(paths, partner) != paths.end(), path, ": has no matching file of its ",
                           other);
    if (stem) {
      shards.push_back({.inputs = files::map_npy(path), .targets = files::map_npy(partner)});
    }
  }
  return TensorPart(std::move(shards));
}

TensorPart open_part(const std::vector<std::string>& paths, DataFormat format) {
  return format == DataFormat::kNpy ? open_npy(paths) : open_safetensors(paths);
}

}  // namespace

TensorPart::TensorPart(std::vector<TensorShard> shards) : shards_(std::move(shards)) {
  int64_t samples = 0;
  for (const TensorShard& shard : shards_) {
    check_shard(shard);
    check_alike(shard, shards_.front());
    samples += shard.inputs.shape[0];
    ends_.push_back(samples);
  }
  NARROWCAST_CHECK_INPUT(samples >= 1, shards_.front().inputs.path(), ": has no samples",
                         shards_.size() > 1 ? ", like all other files" : "");
}

models::Batch TensorPart::samples(at::IntArrayRef indices) const {
  check_indices(indices, size());
  const models::Batch batch = {empty_samples(shards_.front().inputs, std::ssize(indices)),
                               empty_samples(shards_.front().targets, std::ssize(indices))};
  for (int64_t row = 0; row < std::ssize(indices); ++row) {
    const int64_t index = indices[static_cast<size_t>(row)];
    const auto shard = static_cast<size_t>(std::ranges::upper_bound(ends_, index) - ends_.begin());
    const int64_t begin = index - (shard == 0 ? 0 : ends_[shard - 1]);
    const auto copy_to = [&](const at::Tensor& rows, const MappedTensor& from) {
      copy_samples(from, begin, 1, static_cast<char*>(rows.mutable_data_ptr()) + row * sample_bytes(from));
    };
    copy_to(batch.inputs, shards_[shard].inputs);
    copy_to(batch.targets, shards_[shard].targets);
  }
  return batch;
}

TensorFolder::TensorFolder(const std::string& folder, DataFormat format, const DataFiles& files)
    : name_(folder), training_(open_part(files.training, format)), validation_(open_part(files.validation, format)) {
  check_alike(validation_.shards().front(), training_.shards().front());
}

uint64_t TensorFolder::content_hash() const {
  uint64_t hash = kHashStart;
  for (const TensorPart* part : {&training_, &validation_}) {
    for (const TensorShard& shard : part->shards()) {
      hash = files::sampled_hash(*shard.inputs.file, hash);
      hash = shard.targets.file == shard.inputs.file ? hash : files::sampled_hash(*shard.targets.file, hash);
    }
  }
  return hash;
}

int64_t TensorFolder::inputs_per_sample() const { return numbers_per_sample(training_.shards().front().inputs); }

bool TensorFolder::has_pixels() const {
  const c10::ScalarType dtype = training_.shards().front().inputs.dtype;
  return dtype == at::kByte || c10::isFloatingType(dtype);
}

std::optional<int64_t> TensorFolder::class_bound() const {
  if (!c10::isIntegralType(training_.shards().front().targets.dtype, /*includeBool=*/true)) {
    return std::nullopt;
  }
  int64_t greatest = 0;
  for (const TensorPart* part : {&training_, &validation_}) {
    for (const TensorShard& shard : part->shards()) {
      greatest = std::max(greatest, greatest_class(shard.targets));
    }
  }
  return greatest + 1;
}

int64_t TensorFolder::classes() const {
  const MappedTensor& first = training_.shards().front().targets;
  TORCH_CHECK_VALUE(c10::isIntegralType(first.dtype, /*includeBool=*/true) && first.shape.size() == 1, "data: classes ",
                    "must be one integer per sample, but the targets of ", name_, " are ", first.dtype,
                    " of the shape ", at::IntArrayRef(first.shape));
  return class_bound().value();
}

models::Batch TensorFolder::training_batch(at::IntArrayRef indices) const {
  return converted(training_.samples(indices));
}

models::Batch TensorFolder::held_out_batch(at::IntArrayRef indices) const {
  return converted(validation_.samples(indices));
}

}  // namespace narrowcast::data

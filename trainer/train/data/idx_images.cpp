#include "trainer/train/data/idx_images.h"

#include <ATen/ATen.h>
#include <c10/util/Exception.h>

#include <algorithm>
#include <filesystem>
#include <string_view>
#include <vector>

#include <narrowcast/errors.h>
#include "trainer/base/files/hash.h"
#include "trainer/base/files/open_file.h"
#include "trainer/train/data/data_folder.h"
#include "trainer/train/files/mapped_file.h"

namespace narrowcast::data {
namespace {

constexpr uint32_t kUnsignedByteMagic = 0x0800;  // the low byte is the number of dimensions
constexpr int64_t kLabelsAt = 8;                 // the byte of the first label
constexpr std::string_view kGzipMagic = "\x1f\x8b";

// A big-endian 32-bit number at a byte offset.
uint32_t number_at(std::string_view bytes, size_t offset) {
  uint32_t number = 0;
  for (const char byte : bytes.substr(offset, 4)) {
    number = number << 8 | static_cast<unsigned char>(byte);
  }
  return number;
}

// A uint8 tensor of `dimensions` dimensions.
at::Tensor read_idx(const std::string& path, size_t dimensions) {
  std::error_code ignored;  // if its status is unavailable, reading fails below with the reason
  TORCH_CHECK_VALUE(std::filesystem::exists(path, ignored) || !std::filesystem::exists(path + ".gz", ignored), path,
                    ": does not exist, but a .gz does: unpack it first (gunzip)");
  const std::string content = files::read_file(path);
  TORCH_CHECK_VALUE(!content.starts_with(kGzipMagic), path, ": is compressed by gzip: unpack it first (gunzip)");
  const size_t header_bytes = 4 + 4 * dimensions;
  NARROWCAST_CHECK_INPUT(content.size() >= header_bytes, files::at_byte(std::ssize(content), path), content.size(),
                         " bytes are too few for an IDX file of ", dimensions, " dimension(s)");
  const uint32_t magic = number_at(content, 0);
  NARROWCAST_CHECK_INPUT(magic == kUnsignedByteMagic + dimensions, files::at_byte(0, path), "has the magic number ",
                         magic, ", but bytes of ", dimensions, " dimension(s) need ", kUnsignedByteMagic + dimensions);
  std::vector<int64_t> sizes;
  int64_t bytes = 1;
  for (size_t i = 0; i < dimensions; ++i) {
    sizes.push_back(number_at(content, 4 + 4 * i));
    NARROWCAST_CHECK_INPUT(sizes.back() >= 1 && !__builtin_mul_overflow(bytes, sizes.back(), &bytes),
                           files::at_byte(4 + 4 * static_cast<int64_t>(i), path), "has the sizes ", sizes,
                           ", which are not valid");
  }
  const auto data_bytes = static_cast<int64_t>(content.size() - header_bytes);
  NARROWCAST_CHECK_INPUT(bytes == data_bytes, files::at_byte(4, path), "has the sizes ", sizes, ", which need ", bytes,
                         " bytes of data, but ", data_bytes, " bytes follow");
  return at::from_blob(const_cast<char*>(content.data() + header_bytes), sizes, at::kByte).clone();
}

}  // namespace

at::Tensor read_idx_images(const std::string& path) { return read_idx(path, 3); }

at::Tensor read_idx_labels(const std::string& path, int64_t classes) {
  const at::Tensor labels = read_idx(path, 1).to(at::kLong);
  const int64_t index = labels.argmax().item<int64_t>();
  NARROWCAST_CHECK_INPUT(labels[index].item<int64_t>() < classes, files::at_byte(kLabelsAt + index, path), "label ",
                         index, " is ", labels[index].item<int64_t>(), ", but must be in 0..", classes - 1);
  return labels;
}

IdxImages::Part IdxImages::read_part(const IdxImagesOptions& options, const std::string& name) {
  const std::filesystem::path folder(options.folder);
  const std::string labels_path = folder / idx_labels_name(name);
  const Part part = {.images = read_idx_images(folder / idx_images_name(name)),
                     .labels = read_idx_labels(labels_path, options.classes)};
  NARROWCAST_CHECK_INPUT(part.images.size(0) == part.labels.size(0), files::at_byte(4, labels_path), "has ",
                         part.labels.size(0), " labels for ", part.images.size(0), " images");
  return part;
}

IdxImages::IdxImages(const IdxImagesOptions& options) : classes_(options.classes) {
  TORCH_CHECK_VALUE(classes_ >= 1 && classes_ <= kAnyIdxClasses, "classes must be in 1..", kAnyIdxClasses, ", but is ",
                    classes_);
  training_ = read_part(options, kIdxTraining);
  held_out_ = read_part(options, kIdxHeldOut);
  const auto training_sizes = training_.images.sizes().slice(1);
  const auto held_out_sizes = held_out_.images.sizes().slice(1);
  NARROWCAST_CHECK_INPUT(
      training_sizes == held_out_sizes,
      files::at_byte(8, (std::filesystem::path(options.folder) / idx_images_name(kIdxHeldOut)).string()),
      "held-out images are ", held_out_sizes, ", but training images are ", training_sizes);
}

uint64_t IdxImages::content_hash() const {
  uint64_t hash = kHashStart;
  for (const at::Tensor& part : {training_.images, training_.labels, held_out_.images, held_out_.labels}) {
    hash = hash_of_content({static_cast<const char*>(part.const_data_ptr()), part.nbytes()}, hash);
  }
  return hash;
}

int64_t IdxImages::pixels() const { return training_.images[0].numel(); }

models::Batch IdxImages::batch(const Part& part, at::IntArrayRef indices) {
  check_indices(indices, part.labels.size(0));
  const at::Tensor selected = at::tensor(indices, at::kLong);
  return {part.images.index_select(0, selected), part.labels.index_select(0, selected)};
}

models::Batch IdxImages::training_batch(at::IntArrayRef indices) const { return batch(training_, indices); }

models::Batch IdxImages::held_out_batch(at::IntArrayRef indices) const { return batch(held_out_, indices); }

std::optional<int64_t> IdxImages::class_bound() const {
  return std::max(training_.labels.max().item<int64_t>(), held_out_.labels.max().item<int64_t>()) + 1;
}

}  // namespace narrowcast::data

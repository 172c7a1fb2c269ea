#include "trainer/train/files/safetensors.h"

#include <ATen/ATen.h>

#include <algorithm>
#include <bit>
#include <cstring>
#include <memory>
#include <utility>
#include <vector>

#include <narrowcast/errors.h>
#include "ops/common/text.h"
#include "trainer/base/files/open_file.h"
#include "trainer/base/files/safetensors_header.h"
#include "trainer/train/files/file_io.h"

namespace narrowcast::files {
namespace {

static_assert(std::endian::native == std::endian::little, "numbers are copied as the file has them");

constexpr int64_t kChunkBytes = int64_t{1} << 20;

// Reads a file from its beginning, and computes a sum of the bytes read if a sum is expected.
class SequentialFile {
 public:
  explicit SequentialFile(const std::string& path, Sha256* sum = nullptr) : file_(path), sum_(sum) {}

  const std::string& path() const { return file_.path(); }
  int64_t size() const { return file_.size(); }
  const InputFile& file() const { return file_; }
  // Bytes read so far.
  int64_t position() const { return position_; }

  void read(void* destination, int64_t bytes) {
    file_.read(position_, destination, bytes);
    if (sum_ != nullptr) {
      sum_->update({static_cast<const char*>(destination), static_cast<size_t>(bytes)});
    }
    position_ += bytes;
  }

  // Reads the rest of the file.
  void skip_rest() {
    std::string rest(static_cast<size_t>(std::min(size() - position_, kChunkBytes)), '\0');
    while (position_ < size()) {
      read(rest.data(), std::min(size() - position_, kChunkBytes));
    }
  }

 private:
  InputFile file_;
  Sha256* sum_;
  int64_t position_ = 0;
};

// The header's JSON, without the length before it.
std::string read_header_text(SequentialFile& file) {
  NARROWCAST_CHECK_INPUT(file.size() >= kLengthBytes, at_byte(file.size(), file.path()), file.size(),
                         " bytes are too few for a safetensors file");
  uint64_t length = 0;
  file.read(&length, kLengthBytes);
  NARROWCAST_CHECK_INPUT(length <= static_cast<uint64_t>(kLargestHeader), at_byte(0, file.path()),
                         "the header's length ", length, " is above the limit of ", kLargestHeader, " bytes");
  const auto bytes = static_cast<int64_t>(length);
  NARROWCAST_CHECK_INPUT(bytes <= file.size() - kLengthBytes, at_byte(0, file.path()), "the header's length ", bytes,
                         " reaches past the end of the file at byte ", file.size());
  std::string text(length, '\0');
  file.read(text.data(), bytes);
  return text;
}

at::Tensor read_tensor(SequentialFile& file, const std::string& name, const TensorEntry& entry) {
  const at::Tensor tensor = at::empty(entry.shape, entry.dtype);
  const int64_t begin = file.position();
  file.read(tensor.data_ptr(), entry.end - entry.begin);
  if (entry.dtype == at::kBool) {
    const at::Tensor wrong = tensor.view(at::kByte).gt(1).flatten().nonzero();
    NARROWCAST_CHECK_INPUT(wrong.size(0) == 0, at_byte(begin + wrong[0].item<int64_t>(), file.path()), "tensor ",
                           in_quotes(name), " of dtype BOOL holds a byte other than 0 and 1");
  }
  return tensor;
}

// Leaves the file at the tensors' bytes.
SafetensorsHeader read_header(SequentialFile& file) {
  const std::string text = read_header_text(file);
  return parse_safetensors_header(text, file.size() - file.position(), file.path());
}

Safetensors read_content(SequentialFile& file) {
  SafetensorsHeader header = read_header(file);
  Safetensors content = {.tensors = {}, .metadata = std::move(header.metadata)};
  for (const auto& [name, entry] : header.tensors) {
    content.tensors.emplace(name, read_tensor(file, name, entry));
  }
  return content;
}

void check_writable(const std::string& path, const std::string& name, const at::Tensor& tensor) {
  TORCH_CHECK_VALUE(tensor.defined(), path, ": tensor ", in_quotes(name), " is undefined");
  TORCH_CHECK_VALUE(tensor.layout() == at::kStrided, path, ": tensor ", in_quotes(name), " has the layout ",
                    tensor.layout(), ", but only strided tensors can be written");
  TORCH_CHECK_VALUE(dtype_name(tensor.scalar_type()).has_value(), path, ": tensor ", in_quotes(name), " has the dtype ",
                    tensor.scalar_type(), ", which safetensors files cannot hold here");
  TORCH_CHECK_VALUE(static_cast<size_t>(tensor.dim()) <= kMostDimensions, path, ": tensor ", in_quotes(name), " has ",
                    tensor.dim(), " dimensions, above the limit of ", kMostDimensions);
}

// Wide dtypes first, so that every tensor is aligned to its dtype; then by name.
std::vector<std::pair<std::string, at::Tensor>> in_file_order(const Safetensors& content) {
  std::vector<std::pair<std::string, at::Tensor>> tensors(content.tensors.begin(), content.tensors.end());
  std::stable_sort(tensors.begin(), tensors.end(),
                   [](const auto& a, const auto& b) { return a.second.element_size() > b.second.element_size(); });
  return tensors;
}

std::string_view bytes_of(const at::Tensor& contiguous) {
  return {static_cast<const char*>(contiguous.const_data_ptr()), contiguous.nbytes()};
}

}  // namespace

Safetensors read_safetensors(const std::string& path) {
  SequentialFile file(path);
  return read_content(file);
}

Safetensors read_safetensors(const std::string& path, const FileDigest& expected) {
  Sha256 sum;
  SequentialFile file(path, &sum);
  NARROWCAST_CHECK_INPUT(file.size() == expected.bytes, path, ": has ", file.size(), " bytes, but must have ",
                         expected.bytes);
  const auto check_sum = [&] {
    file.skip_rest();
    NARROWCAST_CHECK_INPUT(sum.hex() == expected.sha256, path, ": has the SHA-256 ", sum.hex(), ", but must have ",
                           printable(expected.sha256, 64));
  };
  try {
    Safetensors content = read_content(file);
    check_sum();
    return content;
  } catch (const CorruptInputError&) {
    check_sum();  // A wrong sum explains more than a missing part.
    throw;
  }
}

std::map<std::string, MappedTensor> map_safetensors(const std::string& path) {
  SequentialFile file(path);
  SafetensorsHeader header = read_header(file);
  const auto mapped = std::make_shared<const MappedFile>(file.file());
  std::map<std::string, MappedTensor> tensors;
  for (auto& [name, entry] : header.tensors) {
    tensors.emplace(name, MappedTensor{.file = mapped,
                                       .dtype = entry.dtype,
                                       .shape = std::move(entry.shape),
                                       .begin = file.position() + entry.begin});
  }
  return tensors;
}

FileDigest write_safetensors(const std::string& path, const Safetensors& content) {
  for (const auto& [name, tensor] : content.tensors) {
    check_writable(path, name, tensor);
  }
  const auto tensors = in_file_order(content);
  SafetensorsHeader header = {.tensors = {}, .metadata = content.metadata};
  int64_t offset = 0;
  for (const auto& [name, tensor] : tensors) {
    const int64_t end = offset + tensor.numel() * static_cast<int64_t>(tensor.element_size());
    header.tensors.emplace_back(
        name, TensorEntry{.dtype = tensor.scalar_type(), .shape = tensor.sizes().vec(), .begin = offset, .end = end});
    offset = end;
  }
  const std::string text = format_safetensors_header(header, path);
  const uint64_t length = text.size();
  AtomicFile file(path);
  file.write({reinterpret_cast<const char*>(&length), sizeof(length)});
  file.write(text);
  for (const auto& [name, tensor] : tensors) {
    file.write(bytes_of(tensor.detach().to(at::kCPU).resolve_conj().resolve_neg().contiguous()));
  }
  return file.commit();
}

}  // namespace narrowcast::files

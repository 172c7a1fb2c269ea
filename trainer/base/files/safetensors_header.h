// The JSON header of the safetensors format: dtype, shape and place of each tensor. The length before the header and
// the tensors after it are in trainer/train/files/safetensors.h.
#pragma once

#include <c10/core/ScalarType.h>

#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

namespace narrowcast::files {

// Bytes of the length before the header.
constexpr int64_t kLengthBytes = 8;

// The largest header that is read or written, in bytes; the reference implementation's limit.
constexpr int64_t kLargestHeader = 100'000'000;
// The most dimensions of a tensor; LibTorch's own limit for most operators.
constexpr size_t kMostDimensions = 64;

// Bytes of a dense tensor, or nothing if they, or the strides of an empty one, overflow.
std::optional<int64_t> dense_bytes(c10::ScalarType dtype, const std::vector<int64_t>& shape);

// One tensor's entry in the header. begin and end are byte offsets from the end of the header.
struct TensorEntry {
  c10::ScalarType dtype = c10::ScalarType::Undefined;
  std::vector<int64_t> shape;
  int64_t begin = 0;
  int64_t end = 0;
};

// A header's content.
struct SafetensorsHeader {
  std::vector<std::pair<std::string, TensorEntry>> tensors;  // by name, in the order of their bytes
  std::map<std::string, std::string> metadata;
};

// "F32" and so on for the supported dtypes, else nothing; and the reverse.
std::optional<std::string_view> dtype_name(c10::ScalarType dtype);
std::optional<c10::ScalarType> dtype_of_name(std::string_view name);

// Parses a header, given that `data_bytes` bytes follow it. `path` is for messages, which count bytes from the
// beginning of the file. Throws CorruptInputError for
//   - a header that is not UTF-8 or JSON,
//   - duplicate, missing or unknown keys,
//   - shapes of more than 64 dimensions or more than 2^63-1 elements,
//   - ranges that overlap, leave holes or do not match shape and dtype.
SafetensorsHeader parse_safetensors_header(std::string_view json, int64_t data_bytes, const std::string& path);

// The header as JSON, padded with spaces to a multiple of 8 bytes. Throws c10::ValueError naming `path` for a name or
// metadata that is not UTF-8, the reserved name, or a header that is too large.
std::string format_safetensors_header(const SafetensorsHeader& header, const std::string& path);

}  // namespace narrowcast::files

// The safetensors format (https://github.com/huggingface/safetensors): 8 bytes of header length, little-endian; a JSON
// header; the tensors' bytes, row-major, little-endian, without gaps. safetensors_header.cpp implements the header.
#pragma once

#include <ATen/core/Tensor.h>
#include <c10/core/ScalarType.h>

#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "trainer/train/files/file_io.h"
#include "trainer/train/files/mapped_file.h"

namespace narrowcast::files {

// A file's content, by name.
struct Safetensors {
  std::map<std::string, at::Tensor> tensors;
  std::map<std::string, std::string> metadata;  // the header's __metadata__, if any
};

// Reads a file of F64, C64, F32, F16, BF16, F8_E5M2, F8_E4M3, I64, I32, I16, I8, U64, U32, U16, U8 and BOOL tensors.
// The results are contiguous CPU tensors that own their memory. Throws c10::ValueError naming the path if the file
// cannot be read. Throws CorruptInputError naming the path, the byte, the error and the value if it is not exactly a
// safetensors file:
//   - a header over 100,000,000 bytes or past the end, or one that is not UTF-8 or JSON,
//   - duplicate, missing or unknown keys,
//   - shapes of more than 64 dimensions or more than 2^63-1 elements,
//   - ranges that overlap, leave holes or do not match shape and dtype,
//   - a BOOL that is not 0 or 1.
Safetensors read_safetensors(const std::string& path);

// The same for a file that must have this length and SHA-256; a difference in these is reported before other errors.
// The file is read once: the hashed bytes are the returned ones.
Safetensors read_safetensors(const std::string& path, const FileDigest& expected);

// The mapped tensors of a file by name. Errors are those of read_safetensors, except that BOOL values are not checked.
std::map<std::string, MappedTensor> map_safetensors(const std::string& path);

// Writes the tensors (any device, any strides, the dtypes above) and the metadata. Wide dtypes come first, then the
// order is by name; the header is padded with spaces to a multiple of 8 bytes. The file appears as a whole or not at
// all: it is written under a temporary name in the same folder and renamed. Throws c10::ValueError naming the path and
// the tensor, key or system's reason, and OutputError if, for example, the disk is full; then the file at `path` stays
// as it was. Returns the digest of the file.
FileDigest write_safetensors(const std::string& path, const Safetensors& content);

// The rest concerns the JSON header alone, without the length before it and the tensors after it.

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

// Parses a header and makes all of read_safetensors' checks of it, given that `data_bytes` bytes follow it. `path` is
// for messages, which count bytes from the beginning of the file. Throws CorruptInputError.
SafetensorsHeader parse_safetensors_header(std::string_view json, int64_t data_bytes, const std::string& path);

// The header as JSON, padded with spaces to a multiple of 8 bytes. Throws c10::ValueError naming `path` for a name or
// metadata that is not UTF-8, the reserved name, or a header that is too large.
std::string format_safetensors_header(const SafetensorsHeader& header, const std::string& path);

}  // namespace narrowcast::files

// The safetensors format (https://github.com/huggingface/safetensors): 8 bytes of header length, little-endian; a JSON
// header (base/files/safetensors_header.h); the tensors' bytes, row-major, little-endian, without gaps.
#pragma once

#include <ATen/core/Tensor.h>

#include <map>
#include <string>

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
//   - a header over 100,000,000 bytes or past the end, or one that parse_safetensors_header refuses,
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

}  // namespace narrowcast::files

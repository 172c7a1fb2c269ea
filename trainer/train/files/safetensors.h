// The safetensors format (https://github.com/huggingface/safetensors): 8 bytes of header length,
// little-endian; a JSON header; the tensors' bytes, row-major, little-endian, without gaps.
#pragma once

#include <ATen/core/Tensor.h>

#include <map>
#include <string>

#include "trainer/train/files/sha256.h"

namespace narrowcast::files {

// What a file holds, by name.
struct Safetensors {
  std::map<std::string, at::Tensor> tensors;
  std::map<std::string, std::string> metadata;  // the header's __metadata__, if any
};

// Reads a file of F64, F32, F16, BF16, I64, I32, I16, I8, U8 and BOOL tensors. The tensors are
// contiguous CPU tensors that own their memory. Throws c10::ValueError naming the path if the file
// cannot be read, and CorruptInputError naming the path, what is wrong and the value if it is not
// exactly a safetensors file: a header over 100,000,000 bytes or past the end, bad UTF-8 or JSON,
// duplicate, missing or unknown keys, shapes of more than 64 dimensions or more than 2^63-1
// elements, ranges that overlap, leave holes or do not match shape and dtype, a BOOL that is not
// 0 or 1.
Safetensors read_safetensors(const std::string& path);

// The same of a file that must be the one of this length and sum, which are said first to be others where they are. The
// bytes that are summed are those that are used: the file is read once.
Safetensors read_safetensors(const std::string& path, const FileDigest& expected);

// Writes the tensors (any device, any strides, the dtypes above) and the metadata: wide dtypes
// first, then by name; the header padded with spaces to a multiple of 8 bytes. The file appears as
// a whole or not at all: it is written under a temporary name in the same folder and renamed.
// Throws c10::ValueError naming the path and the tensor, key or system's reason, and OutputError where the
// disk is full or the like, with the file at `path` left as it was.
// Returns what the file holds.
FileDigest write_safetensors(const std::string& path, const Safetensors& content);

}  // namespace narrowcast::files

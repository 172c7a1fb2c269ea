// Weights in one safetensors file, or in several with an index. Hugging Face's libraries save large models like this:
//
//   model-00001-of-00002.safetensors  model-00002-of-00002.safetensors  model.safetensors.index.json
//
// The index is JSON: {"metadata": {...}, "weight_map": {"wte.weight": "model-00001-of-00002.safetensors", ...}}.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "trainer/train/files/safetensors.h"

namespace narrowcast::files {

// Weights, and the files that were read.
struct Weights {
  Safetensors content;             // for several files: the tensors of all, without metadata
  std::vector<std::string> files;  // the file itself, or the index and then its parts in the order of their names
};

// Reads the weights at `path`: a file named *.safetensors, an index named *.safetensors.index.json, or a folder with
// either of model.safetensors and model.safetensors.index.json. Parts are in the folder of their index.
//
// Errors:
//   - c10::ValueError naming `option` and the path for another name, one part of several, or a folder with neither of
//     these files or both.
//   - c10::ValueError naming a file that cannot be read.
//   - CorruptInputError as from read_safetensors.
//   - CorruptInputError naming part, tensor and index if a part lacks a tensor that the index lists for it, or contains
//     another one.
Weights read_weights(const std::string& option, const std::string& path);

// The hash of the files' bytes, one file after the other (base/files/hash.h). Errors are those of InputFile.
uint64_t hash_of_files(const std::vector<std::string>& paths);

}  // namespace narrowcast::files

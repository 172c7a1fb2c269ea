// TorchScript modules in files.
#pragma once

#include <torch/csrc/jit/api/module.h>

#include <optional>
#include <string>
#include <unordered_map>
#include <vector>

#include "models/imported/script_model.h"

namespace narrowcast::files {

// A module with its extra files, by name.
struct SavedScript {
  torch::jit::Module module;
  std::unordered_map<std::string, std::string> extra_files = {};
};

// Reads a TorchScript file onto the CPU. Its code runs when the module is called, so the user must have named the file.
// Throws c10::ValueError naming the path if it cannot be read, and CorruptInputError if it is not a TorchScript module.
SavedScript load_script(const std::string& path);

// Stores a vocabulary in the module (script_vocabulary), unless it is empty.
void put_vocabulary(SavedScript& saved, const std::vector<std::string>& vocabulary);

// Writes a TorchScript file; it appears as a whole or not at all. Throws c10::ValueError naming the path.
void save_script(const std::string& path, const SavedScript& saved);

// The vocabulary of a text model: its extra file "vocabulary.json", a JSON array of strings; empty if there is no such
// file. Throws CorruptInputError naming the path if it is anything else.
std::vector<std::string> script_vocabulary(const std::string& path, const SavedScript& saved);

// Stores the loss of the module's predictions (script_loss), or no loss.
void put_loss(SavedScript& saved, const std::optional<models::Loss>& loss);

// The loss with which the module was trained: its extra file "narrowcast_loss.txt"; empty if there is no such file.
// Throws CorruptInputError naming the path if that file is invalid.
std::optional<models::Loss> script_loss(const std::string& path, const SavedScript& saved);

}  // namespace narrowcast::files

// Models from Python in files: a TorchScript module or a model package, ready to be trained.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "models/imported/imported_model.h"
#include "trainer/train/files/script_file.h"

namespace narrowcast::files {

// A model and its file.
struct ImportedFile {
  std::shared_ptr<models::ImportedModel> model;
  std::shared_ptr<const SavedScript> script = nullptr;  // shared with the model; null: a package
  uint64_t hash = 0;                                    // of the file's bytes
  std::vector<std::string> warnings = {};               // one line each, about what may be a mistake
};

// Loads the file according to its suffix (models::is_script), in training mode. The mode in which it was saved does not
// matter. `loss` is the name of a module's loss, empty if it returns the loss itself. Throws as load_script,
// models::read_package, models::ScriptModel and models::PackageModel do.
ImportedFile load_imported(const std::string& path, const std::string& loss);

}  // namespace narrowcast::files

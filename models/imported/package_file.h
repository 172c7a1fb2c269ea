// Model packages in files (docs/reference/model-packages.md).
#pragma once

#include <ATen/core/Tensor.h>

#include <map>
#include <string>

#include "models/imported/compiled_graph.h"
#include "models/imported/package_manifest.h"

namespace narrowcast::models {

// The content of a package.
struct Package {
  PackageManifest manifest;
  std::map<std::string, at::Tensor> weights;  // by the names of manifest.state; contiguous, on the CPU
  CompiledFiles train;
  CompiledFiles evaluate;
};

// Reads a package; nothing of it is executed. Throws c10::ValueError naming the path if it cannot be read, is not a
// package that narrowcast_export.py wrote, or cannot run here (check_runs_here), and CorruptInputError if it is
// damaged.
Package read_package(const std::string& path);

}  // namespace narrowcast::models

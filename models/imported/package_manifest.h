// The manifest of a model package: docs/reference/model-packages.md.
#pragma once

#include <c10/core/ScalarType.h>

#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "models/imported/imported_model.h"

namespace narrowcast::models {

// A parameter or buffer.
struct PackagedTensor {
  enum class Role { kTrained, kFrozen, kBuffer };

  std::string name;
  Role role = Role::kTrained;
  std::vector<int64_t> shape;
  c10::ScalarType dtype = c10::ScalarType::Undefined;
  bool is_unused = false;     // of a trained parameter: the loss does not depend on it
  bool is_persistent = true;  // of a buffer: the module's state_dict() has it
};

// The range of those elements of inputs or targets that the compiled code uses as an index.
struct PackagedRange {
  // Elements of each sample along one dimension: begin, begin + step and so on, below end.
  struct Slice {
    int64_t begin = 0;
    int64_t end = 0;
    int64_t step = 1;
  };

  int64_t least = 0;
  int64_t most = 0;
  std::optional<int64_t> ignored = {};  // a number that is valid besides least..most
  std::vector<Slice> slices = {};       // one for each dimension of a sample
};

// Inputs or targets of a batch.
struct PackagedInput {
  std::vector<int64_t> sample_shape;  // the shape without the first dimension, the batch
  c10::ScalarType dtype = c10::ScalarType::Undefined;
  std::vector<PackagedRange> ranges = {};
};

// One of the two compiled graphs.
struct PackagedGraph {
  int64_t least_batch = 1;
  int64_t most_batch = 1;
  // The tensors that it returns after the loss: the names of trained parameters, whose gradients come first, and of
  // buffers. The evaluation has none.
  std::vector<std::string> gradients = {};
  std::vector<std::string> buffers = {};
  // The parameters whose gradients the graph reports while it runs (compiled_graph.h), by name. The value is true if
  // the reported tensor stays as it is until the graph ends, since it is also an output.
  std::map<std::string, bool> signals = {};
  // The shape of the evaluation's outputs, if it returns any. -1 stands for a size that follows from the batch.
  std::optional<std::vector<int64_t>> outputs = {};
};

struct PackageManifest {
  std::string module;                        // name of the module's class
  std::string torch;                         // version that compiled the package, "2.11.0+cu130"
  std::string device;                        // "cpu"
  std::string machine;                       // "x86_64"
  std::string instruction_set;               // "AVX2"
  std::string loss;                          // a name of Loss, "custom" or "module"
  double label_smoothing = 0;                // that the training step contains
  std::vector<std::string> vocabulary = {};  // of a text model, else empty
  PackagedInput inputs;
  PackagedInput targets;
  std::vector<PackagedTensor> state = {};        // in the order in which the graphs take them
  std::map<std::string, std::string> tied = {};  // additional names, each with the name in `state`
  PackagedGraph train;
  PackagedGraph evaluate;
  std::string weights_record;  // name in the archive
  int64_t weights_bytes = 0;
};

// Parses the JSON text of a manifest and checks that its parts fit each other. Keys that it does not know do not
// matter. Throws CorruptInputError naming `path` and what is wrong.
PackageManifest parse_manifest(std::string_view text, const std::string& path);

// Throws c10::ValueError naming `path` if this processor, or this LibTorch, cannot run the package.
void check_runs_here(const PackageManifest& manifest, const std::string& path);

// A reason to distrust a package that check_runs_here accepts: an older torch compiled it. Empty without one.
std::string version_warning(const PackageManifest& manifest, const std::string& path);

}  // namespace narrowcast::models

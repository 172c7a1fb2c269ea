// `narrowcast-quantize`: a trained model's file with int8 weights, and what that did to each layer.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "models/weight_only_int8.h"

namespace narrowcast::inference {

// What quantisation does to one Linear layer.
struct LayerReport {
  std::string name;           // in the module, e.g. "blocks.0.mlp_input"; "" is the module itself
  int64_t bytes_before = 0;   // of the weight
  int64_t bytes_after = 0;    // of the codes and the scales
  double relative_error = 0;  // |codes * scales - weight| / |weight|, 2-norms; 0 for a weight of zeros
};

// What quantisation does to a model.
struct QuantizeReport {
  std::vector<LayerReport> layers;               // sorted by name
  int64_t other_bytes = 0;                       // of all tensors that stay as they are
  std::vector<models::FloatLayer> float_layers;  // Linear layers that stay as they are
};

// What to quantise, and where to.
struct QuantizeOptions {
  std::string input;       // a model file of narrowcast (*.safetensors) or a TorchScript module (*.pt)
  std::string output;      // of the same kind
  bool overwrite = false;  // replace a file at `output`
  bool dry_run = false;    // do everything but write
};

// Reads the input and writes it with weight-only int8 Linear layers (models/weight_only_int8.h): a model file with the
// same metadata and "quantization": "weight_only_int8", a TorchScript module with the same extra files. The output
// appears as a whole or not at all. Throws c10::ValueError naming the flag or file for a suffix that is neither, an
// output that exists, is the input or of the other kind, a file that cannot be read or written, a model that is
// quantised already or has no Linear layer that can be converted; CorruptInputError for a file that is not what its
// suffix says.
QuantizeReport quantize_file(const QuantizeOptions& options);

// A table for people: a line per layer, the other tensors, the sum; then a line for each Linear layer that stays.
std::string report_text(const QuantizeReport& report);

// The report on a model's tensors before and after. A layer is what has NAME.weight in both and NAME.scales in `after`
// only; with no name, `weight` and `scales`.
QuantizeReport compare_layers(const models::StateDict& before, const models::StateDict& after);

// The text "NAME stays as it is: REASON" for each layer, with the separator between them.
std::string float_layers_text(const std::vector<models::FloatLayer>& layers, const std::string& separator);

}  // namespace narrowcast::inference

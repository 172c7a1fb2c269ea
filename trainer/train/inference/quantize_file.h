// `narrowcast-quantize`: writes a trained model's file with int8 weights, and reports the effect on each layer.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "models/quantization/weight_only_int8.h"

namespace narrowcast::inference {

// The effect of quantisation on one Linear layer.
struct LayerReport {
  std::string name;           // in the module, e.g. "blocks.0.mlp_input"; "" is the module itself
  int64_t bytes_before = 0;   // of the weight
  int64_t bytes_after = 0;    // of the codes and the scales
  double relative_error = 0;  // |codes * scales - weight| / |weight|, 2-norms; 0 for a weight of zeros
};

// The effect of quantisation on a model.
struct QuantizeReport {
  std::vector<LayerReport> layers;               // sorted by name
  int64_t other_bytes = 0;                       // of all tensors that stay unchanged
  std::vector<models::FloatLayer> float_layers;  // Linear layers that stay unchanged
};

// The input and output of quantisation.
struct QuantizeOptions {
  std::string input;       // a model file of narrowcast (*.safetensors) or a TorchScript module (*.pt)
  std::string output;      // of the same kind
  bool overwrite = false;  // replace a file at `output`
  bool dry_run = false;    // do everything except writing
};

// Reads the input and writes it with weight-only int8 Linear layers (models/quantization/weight_only_int8.h). A model
// file keeps its metadata and gets "quantization": "weight_only_int8"; a TorchScript module keeps its extra files. The
// output appears as a whole or not at all.
//
// Errors:
//   - c10::ValueError naming the flag or file for a suffix that is neither kind's, or a file that cannot be read or
//     written.
//   - c10::ValueError for an output that exists, is the input or is of the other kind.
//   - c10::ValueError for a model that is quantised already, or has no Linear layer that can be converted.
//   - CorruptInputError for a file that does not match its suffix.
QuantizeReport quantize_file(const QuantizeOptions& options);

// A table for people: a line per layer, the other tensors, and the sum; then a line for each unchanged Linear layer.
std::string report_text(const QuantizeReport& report);

// The report on a model's tensors before and after. A layer has NAME.weight in both, and NAME.scales only in `after`;
// without a name it has `weight` and `scales`.
QuantizeReport compare_layers(const models::StateDict& before, const models::StateDict& after);

// The text "NAME is not quantised: REASON" for each layer, with the separator between them.
std::string float_layers_text(const std::vector<models::FloatLayer>& layers, const std::string& separator);

}  // namespace narrowcast::inference

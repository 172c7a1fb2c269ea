// What quantisation did to each layer of a model.
#pragma once

#include <string>
#include <vector>

#include "models/weight_only_int8.h"
#include "trainer/train/quantization/quantize_file.h"

namespace narrowcast::quantization {

// A layer is what has NAME.weight in both and NAME.scales in `after` only; with no name, `weight` and `scales`.
QuantizeReport compare(const models::StateDict& before, const models::StateDict& after);

// "NAME stays as it is: REASON" for each layer, with the separator between them.
std::string float_layers_text(const std::vector<models::FloatLayer>& layers, const std::string& separator);

}  // namespace narrowcast::quantization

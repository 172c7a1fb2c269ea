// What quantisation did to each layer of a model.
#pragma once

#include "models/weight_only_int8.h"
#include "ops/export.h"
#include "trainer/quantization/quantize_file.h"

namespace narrowcast::quantization {

// A layer is what has NAME.weight in both and NAME.scales in `after` only.
NARROWCAST_EXPORT QuantizeReport compare(const models::StateDict& before, const models::StateDict& after);

}  // namespace narrowcast::quantization

#pragma once

#include <vector>

#include "ops/export.h"

namespace narrowcast::bench {

// The middle of the values, or the mean of the two in the middle. Throws c10::ValueError without values.
NARROWCAST_EXPORT double median(std::vector<double> values);

}  // namespace narrowcast::bench

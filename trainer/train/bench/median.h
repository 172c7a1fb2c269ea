#pragma once

#include <vector>

namespace narrowcast::bench {

// The middle of the values, or the mean of the two in the middle. Throws c10::ValueError without values.
double median(std::vector<double> values);

}  // namespace narrowcast::bench

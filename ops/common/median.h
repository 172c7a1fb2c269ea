// The median, for measurements of links (ranks) and of hooks (narrowcast-bench).
#pragma once

#include <c10/util/Exception.h>

#include <algorithm>
#include <cstddef>
#include <vector>

namespace narrowcast {

// The middle value, or the mean of the two middle values. Throws c10::ValueError if `values` is empty.
inline double median(std::vector<double> values) {
  TORCH_CHECK_VALUE(!values.empty(), "values must not be empty");
  std::sort(values.begin(), values.end());
  const size_t middle = values.size() / 2;
  return values.size() % 2 == 1 ? values[middle] : (values[middle - 1] + values[middle]) / 2;
}

}  // namespace narrowcast

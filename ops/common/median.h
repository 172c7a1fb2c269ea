// The median, for those who measure: ranks their link, narrowcast-bench its hooks.
#pragma once

#include <c10/util/Exception.h>

#include <algorithm>
#include <cstddef>
#include <vector>

namespace narrowcast {

// The middle of the values, or the mean of the two in the middle. Throws c10::ValueError without values.
inline double median(std::vector<double> values) {
  TORCH_CHECK_VALUE(!values.empty(), "values: a median needs at least one");
  std::sort(values.begin(), values.end());
  const size_t middle = values.size() / 2;
  return values.size() % 2 == 1 ? values[middle] : (values[middle - 1] + values[middle]) / 2;
}

}  // namespace narrowcast

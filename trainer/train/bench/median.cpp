#include "trainer/train/bench/median.h"

#include <c10/util/Exception.h>

#include <algorithm>

namespace narrowcast::bench {

double median(std::vector<double> values) {
  TORCH_CHECK_VALUE(!values.empty(), "values: a median needs at least one");
  std::sort(values.begin(), values.end());
  const size_t middle = values.size() / 2;
  return values.size() % 2 == 1 ? values[middle] : (values[middle - 1] + values[middle]) / 2;
}

}  // namespace narrowcast::bench

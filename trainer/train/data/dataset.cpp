#include "trainer/train/data/dataset.h"

#include <c10/util/Exception.h>

namespace narrowcast::data {

void check_indices(at::IntArrayRef indices, int64_t size) {
  TORCH_CHECK_VALUE(!indices.empty(), "indices must not be empty");
  for (const int64_t index : indices) {
    TORCH_CHECK_VALUE(index >= 0 && index < size, "indices must be in 0..", size - 1, ", but one is ", index);
  }
}

}  // namespace narrowcast::data

// The kernel of weight_only_int8_linear that uses the GPU's matrix units. linear.h has its arguments, and describes
// pointers, streams and errors.
#pragma once

#include "ops/cuda/launch/launch_arguments.h"
#include "ops/cuda/weight_only_int8/linear.h"

namespace narrowcast::cuda {

// Whether launch_multiply_row_tiles accepts the arguments: rows are bfloat16 or float16, rows and codes begin at
// multiples of 16 bytes, and the number of inputs is a multiple of 16.
bool suits_matrix_units(const Int8Layer& layer, const LayerRows& rows);

// y of each row of x, summed by the matrix units in float32 directly from the codes, up to 32 rows at a time. The order
// of a sum's terms depends only on the number of inputs. Throws std::invalid_argument unless suits_matrix_units().
void launch_multiply_row_tiles(const Int8Layer& layer, const LayerRows& rows, Stream stream);

}  // namespace narrowcast::cuda

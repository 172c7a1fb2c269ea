// The kernels of weight_only_int8_linear, enqueued on a stream of the current device:
// free of LibTorch, and none waits. Pointers need only be aligned for their
// elements. Rows are float32, bfloat16 or float16 (else std::invalid_argument).
// std::runtime_error if a kernel cannot be launched.
#pragma once

#include <cuda_runtime_api.h>

#include "ops/cuda/weight_only_int8/int8_layer.h"

namespace narrowcast::cuda {

// y of each row of x, summed in float32 straight from the codes, eight rows at a time. The order of a sum's terms
// depends on nothing but the number of inputs, the alignment of the pointers and whether there are 1, 2, 3 or 4, or
// more rows.
void launch_multiply_few_rows(const Int8Layer& layer, const LayerRows& rows, cudaStream_t stream);

// Whether launch_multiply_row_tiles takes them: rows are bfloat16 or float16, they and the codes begin at multiples of
// 16 bytes, and the number of inputs is a multiple of 16.
bool suits_matrix_units(const Int8Layer& layer, const LayerRows& rows);

// y of each row of x, summed by the matrix units in float32 straight from the codes, up to 32 rows at a time. The order
// of a sum's terms depends on nothing but the number of inputs. std::invalid_argument for what does not suit.
void launch_multiply_row_tiles(const Int8Layer& layer, const LayerRows& rows, cudaStream_t stream);

// These outputs of y: products scaled and shifted. rows.x is not used.
void launch_scale_products(const Int8Layer& layer, const ProductColumns& columns, const LayerRows& rows,
                           cudaStream_t stream);

}  // namespace narrowcast::cuda

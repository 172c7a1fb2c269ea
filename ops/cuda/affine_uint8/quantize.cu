#include "ops/cuda/affine_uint8/dequantize_kernel.cuh"
#include "ops/cuda/affine_uint8/launch_affine_uint8.h"
#include "ops/cuda/affine_uint8/quantize_kernel.cuh"
#include "ops/cuda/rows/for_each_part.cuh"
#include "ops/cuda/visit_float_type.cuh"

namespace narrowcast::cuda {

void launch_quantize(const FloatRows& x, QparamsIn qparams, uint8_t* codes, cudaStream_t stream) {
  visit_float_type(x.type, [&](auto name) {
    using T = typename decltype(name)::type;
    const QuantizeRows<T> quantize{static_cast<const T*>(x.x), qparams, codes};
    launch_for_each_part(quantize, x.rows, x.row_size, stream, "quantize");
  });
}

void launch_dequantize(const CodeRows& codes, QparamsIn qparams, float* decoded, cudaStream_t stream) {
  const DequantizeRows dequantize{codes.codes, qparams, decoded};
  launch_for_each_part(dequantize, codes.rows, codes.row_size, stream, "dequantize");
}

}  // namespace narrowcast::cuda

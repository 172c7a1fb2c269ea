#include "ops/cuda/affine_uint8/affine_uint8.h"

#include "ops/cuda/affine_uint8/affine_uint8_kernel.cuh"
#include "ops/cuda/launch/launch.cuh"
#include "ops/cuda/launch/rows.cuh"

namespace narrowcast::cuda {

int64_t choose_qparams_workspace(int64_t rows, int64_t row_size) {
  return partials_for_rows(rows, row_size) * static_cast<int64_t>(sizeof(RangeBits));
}

void launch_choose_qparams(const FloatRows& x, void* workspace, QparamsOut qparams, Stream stream) {
  visit_float_type(x.type, [&](auto constant) {
    using T = CudaFloat<decltype(constant)>;
    launch_reduce_rows<T>(x, static_cast<RangeBits*>(workspace), StoreQparams{qparams}, stream, "choose_qparams");
  });
}

void launch_quantize(const FloatRows& x, QparamsIn qparams, uint8_t* codes, Stream stream) {
  visit_float_type(x.type, [&](auto constant) {
    using T = CudaFloat<decltype(constant)>;
    const QuantizeRows<T> quantize{static_cast<const T*>(x.x), qparams, codes};
    launch_for_each_part(quantize, x.rows, x.row_size, stream, "quantize");
  });
}

void launch_dequantize(const CodeRows& codes, QparamsIn qparams, float* decoded, Stream stream) {
  const DequantizeRows dequantize{codes.codes, qparams, decoded};
  launch_for_each_part(dequantize, codes.rows, codes.row_size, stream, "dequantize");
}

}  // namespace narrowcast::cuda

#include "ops/cuda/affine_uint8/choose_qparams_kernel.cuh"
#include "ops/cuda/affine_uint8/launch_affine_uint8.h"
#include "ops/cuda/rows/reduce_rows.cuh"
#include "ops/cuda/visit_float_type.cuh"

namespace narrowcast::cuda {

int64_t choose_qparams_workspace(int64_t rows, int64_t row_size) {
  return partials_for_rows(rows, row_size) * static_cast<int64_t>(sizeof(RangeBits));
}

void launch_choose_qparams(const FloatRows& x, void* workspace, QparamsOut qparams, cudaStream_t stream) {
  visit_float_type(x.type, [&](auto name) {
    using T = typename decltype(name)::type;
    launch_reduce_rows<T>(x, static_cast<RangeBits*>(workspace), StoreQparams{qparams}, stream, "choose_qparams");
  });
}

}  // namespace narrowcast::cuda

// The affine uint8 operators on CUDA, which pass tensors as pointers. Work is enqueued on the current stream of x's
// device. The host does not wait for it, so the values of zero points are not checked here.
#include <ATen/core/Tensor.h>
#include <ATen/ops/empty.h>
#include <c10/cuda/CUDAGuard.h>
#include <c10/cuda/CUDAStream.h>
#include <torch/library.h>

#include <cstdint>

#include "ops/cuda/affine_uint8/affine_uint8.h"
#include "ops/cuda/launch/tensor_arguments.h"
#include "ops/operators/affine_uint8_operators.h"

namespace narrowcast::cuda {
namespace {

// Dense scales and zero points, and pointers to them.
class Qparams {
 public:
  Qparams(const at::Tensor& scales, const at::Tensor& zero_points)
      : scales_(scales.contiguous()), zero_points_(zero_points.contiguous()) {}

  int64_t channels() const { return scales_.numel(); }

  QparamsIn pointers() const {
    const bool ints = zero_points_.scalar_type() == at::kInt;
    return {scales_.const_data_ptr<float>(), ints ? zero_points_.const_data_ptr<int32_t>() : nullptr,
            ints ? nullptr : zero_points_.const_data_ptr<float>()};
  }

 private:
  at::Tensor scales_;
  at::Tensor zero_points_;
};

struct AffineKernelsOnRows {
  static void choose_for_rows(const at::Tensor& dense, int64_t rows, const at::Tensor& scales,
                              const at::Tensor& zero_points) {
    const c10::cuda::CUDAGuard guard(dense.device());
    const FloatRows x = rows_of(dense, rows);
    const at::Tensor workspace =
        at::empty({choose_qparams_workspace(x.rows, x.row_size)}, dense.options().dtype(at::kByte));
    launch_choose_qparams(x, workspace.mutable_data_ptr(),
                          {scales.mutable_data_ptr<float>(), zero_points.mutable_data_ptr<int32_t>()},
                          c10::cuda::getCurrentCUDAStream());
  }

  static void quantize_rows(const at::Tensor& x, const AffineQparamTensors& tensors, const at::Tensor& codes) {
    if (x.numel() == 0) return;
    const c10::cuda::CUDAGuard guard(x.device());
    const Qparams qparams(tensors.scales, tensors.zero_points);
    launch_quantize(rows_of(x, qparams.channels()), qparams.pointers(), codes.mutable_data_ptr<uint8_t>(),
                    c10::cuda::getCurrentCUDAStream());
  }

  static void dequantize_rows(const at::Tensor& q, const AffineQparamTensors& tensors, const at::Tensor& decoded) {
    if (q.numel() == 0) return;
    const c10::cuda::CUDAGuard guard(q.device());
    const Qparams qparams(tensors.scales, tensors.zero_points);
    const CodeRows rows{q.const_data_ptr<uint8_t>(), qparams.channels(), q.numel() / qparams.channels()};
    launch_dequantize(rows, qparams.pointers(), decoded.mutable_data_ptr<float>(), c10::cuda::getCurrentCUDAStream());
  }
};

}  // namespace

TORCH_LIBRARY_IMPL(narrowcast, CUDA, m) { AffineUint8Operators<AffineKernelsOnRows>::add_to(m); }

}  // namespace narrowcast::cuda

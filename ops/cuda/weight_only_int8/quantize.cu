#include "ops/cuda/weight_only_int8/quantize.h"

#include <stdexcept>
#include <string>
#include <type_traits>

#include "ops/cuda/launch/launch.cuh"
#include "ops/cuda/launch/rows.cuh"
#include "ops/cuda/weight_only_int8/quantize_kernel.cuh"

namespace narrowcast::cuda {
namespace {

template <class Code, class T>
void write_codes(const FloatRows& x, const T* scales, codec::CodeRange range, void* codes, Stream stream) {
  const SymmetricCodeRows<T, Code> rows{static_cast<const T*>(x.x), scales, range, static_cast<Code*>(codes)};
  launch_for_each_part(rows, x.rows, x.row_size, stream, "dynamically_quantize_per_channel");
}

template <class T>
void write_codes_of_any_type(const FloatRows& x, const T* scales, codec::CodeRange range, SymmetricCodesOut out,
                             Stream stream) {
  if (out.type == CodeType::kInt8) return write_codes<int8_t>(x, scales, range, out.codes, stream);
  if (out.type == CodeType::kUint8) return write_codes<uint8_t>(x, scales, range, out.codes, stream);
  if constexpr (std::is_same_v<T, float>) {
    if (out.type == CodeType::kInt16) return write_codes<int16_t>(x, scales, range, out.codes, stream);
  }
  throw std::invalid_argument("no CUDA kernel for codes of type " + std::to_string(static_cast<int>(out.type)));
}

}  // namespace

int64_t symmetric_scales_workspace(int64_t rows, int64_t row_size) {
  return partials_for_rows(rows, row_size) * static_cast<int64_t>(sizeof(MagnitudeBits));
}

void launch_symmetric_scales(const FloatRows& x, codec::CodeRange range, void* workspace, SymmetricScalesOut out,
                             Stream stream) {
  visit_narrow_float_type(x.type, [&](auto constant) {
    using T = CudaFloat<decltype(constant)>;
    const StoreSymmetricScale<T> store{range, static_cast<T*>(out.scales), out.zero_points};
    launch_reduce_rows<T>(x, static_cast<MagnitudeBits*>(workspace), store, stream, "dynamically_quantize_per_channel");
  });
}

void launch_symmetric_codes(const FloatRows& x, const void* scales, codec::CodeRange range, SymmetricCodesOut out,
                            Stream stream) {
  visit_narrow_float_type(x.type, [&](auto constant) {
    using T = CudaFloat<decltype(constant)>;
    write_codes_of_any_type(x, static_cast<const T*>(scales), range, out, stream);
  });
}

}  // namespace narrowcast::cuda

#include "ops/cuda/weight_only_int8/linear.h"

#include <cuda_pipeline_primitives.h>

#include <cub/warp/warp_reduce.cuh>

#include "ops/cuda/launch/launch.cuh"
#include "ops/cuda/launch/rows.cuh"
#include "ops/cuda/weight_only_int8/linear_kernel.cuh"

namespace narrowcast::cuda {
namespace {

constexpr int kWarp = 32;
constexpr int kWarpsOfBlock = 4;

// The most rows that one kernel sums together.
constexpr int kMostRows = 8;

// Codes in transfer through shared memory. They are copied there without a register that would wait for them. Each lane
// copies and uses its own codes, so no barrier is needed. A warp has 8 KiB in transfer: all codes of two outputs of
// 4096 inputs.
struct CodesAhead {
  static constexpr int kStages = 8;
  Pack<uint32_t, kCodes / 4> of[kStages][kOutputsOfWarp][kWarp];
};

// The source of codes for sum_aligned_products.
class CodesFromShared {
 public:
  static constexpr int kStages = CodesAhead::kStages;

  __device__ CodesFromShared(CodesAhead& ahead, Lane lane) : ahead_(ahead), lane_(lane.rank) {}

  __device__ void request(int stage, const int8_t* first_output, const int8_t* second_output) {
    if (first_output != nullptr) {
      __pipeline_memcpy_async(&ahead_.of[stage][0][lane_], first_output, kPackBytes);
      __pipeline_memcpy_async(&ahead_.of[stage][1][lane_], second_output, kPackBytes);
    }
    __pipeline_commit();
  }

  __device__ CodeWords take(int stage) {
    __pipeline_wait_prior(kStages - 1);
    return {{ahead_.of[stage][0][lane_], ahead_.of[stage][1][lane_]}};
  }

 private:
  CodesAhead& ahead_;
  int lane_;
};

// Pointers to the warp's rows and outputs.
template <class T, int kRows>
__device__ ProductTerms<T, kRows> terms_of(const Int8Layer& layer, const T* x, int64_t rows, int64_t first_row,
                                           int64_t first_output) {
  ProductTerms<T, kRows> terms;
  terms.inputs = layer.inputs;
  NARROWCAST_UNROLL
  for (int r = 0; r < kRows; ++r) {
    const int64_t row = first_row + r < rows ? first_row + r : rows - 1;
    terms.x[r] = x + row * layer.inputs;
  }
  NARROWCAST_UNROLL
  for (int o = 0; o < kOutputsOfWarp; ++o) {
    const int64_t output = first_output + o < layer.outputs ? first_output + o : layer.outputs - 1;
    terms.codes[o] = layer.codes + output * layer.inputs;
  }
  return terms;
}

// One warp per kOutputsOfWarp outputs and kRows rows.
template <class T, class S, int kRows, bool kAligned>
__global__ void __launch_bounds__(kWarp* kWarpsOfBlock)
    multiply_few_rows_kernel(Int8Layer layer, const T* x, int64_t rows, T* y) {
  using Reduce = cub::WarpReduce<float>;
  __shared__ typename Reduce::TempStorage storage[kWarpsOfBlock];
  const int warp = static_cast<int>(threadIdx.x) / kWarp;
  const Lane lane{static_cast<int>(threadIdx.x) % kWarp, kWarp};
  const int64_t first_output = (int64_t{blockIdx.x} * kWarpsOfBlock + warp) * kOutputsOfWarp;
  const int64_t first_row = (int64_t{blockIdx.z} * gridDim.y + blockIdx.y) * kRows;
  if (first_output >= layer.outputs || first_row >= rows) return;  // True for the whole warp or for no lane of it.
  const OutputScales<S> of_layer{static_cast<const S*>(layer.scales), static_cast<const S*>(layer.bias)};
  OutputScale scales[kOutputsOfWarp];  // Loaded before they are needed, since that takes as long as loading codes.
  NARROWCAST_UNROLL
  for (int o = 0; o < kOutputsOfWarp; ++o) {
    scales[o] = of_layer.at(first_output + o < layer.outputs ? first_output + o : layer.outputs - 1);
  }
  const ProductTerms<T, kRows> terms = terms_of<T, kRows>(layer, x, rows, first_row, first_output);
  Products<kRows> products;
  if constexpr (kAligned) {
    __shared__ CodesAhead ahead[kWarpsOfBlock];
    CodesFromShared source(ahead[warp], lane);
    products = sum_aligned_products(terms, lane, source);
  } else {
    products = sum_products(terms, lane);
  }
  NARROWCAST_UNROLL
  for (int r = 0; r < kRows; ++r) {
    NARROWCAST_UNROLL
    for (int o = 0; o < kOutputsOfWarp; ++o) {
      const float sum = Reduce(storage[warp]).Sum(products.of[r][o]);  // Valid in lane 0.
      if (lane.rank == 0 && first_row + r < rows && first_output + o < layer.outputs) {
        y[(first_row + r) * layer.outputs + first_output + o] = static_cast<T>(scales[o].apply(sum));
      }
    }
  }
}

// Rows are of type T, scales and bias of type S.
template <class T, class S>
struct FewRows {
  const Int8Layer& layer;
  const LayerRows& rows;
  Stream stream;

  template <int kRows, bool kAligned>
  void launch() const {
    constexpr int64_t kMostOfDimension = 32768;
    constexpr int64_t kOutputsOfBlock = kWarpsOfBlock * kOutputsOfWarp;
    const int64_t tiles = (rows.rows + kRows - 1) / kRows;
    const int64_t width = tiles < kMostOfDimension ? tiles : kMostOfDimension;
    const dim3 grid(static_cast<unsigned int>((layer.outputs + kOutputsOfBlock - 1) / kOutputsOfBlock),
                    static_cast<unsigned int>(width), static_cast<unsigned int>((tiles + width - 1) / width));
    checked_launch("weight_only_int8_linear", [&] {
      multiply_few_rows_kernel<T, S, kRows, kAligned><<<grid, kWarp * kWarpsOfBlock, 0, stream>>>(
          layer, static_cast<const T*>(rows.x), rows.rows, static_cast<T*>(rows.y));
    });
  }

  void launch_aligned() const {
    if (rows.rows == 1) return launch<1, true>();
    if (rows.rows == 2) return launch<2, true>();
    if (rows.rows <= 4) return launch<4, true>();
    launch<kMostRows, true>();
  }

  void launch_any() const {
    if (rows_begin_at_packs(layer, rows)) return launch_aligned();
    rows.rows == 1 ? launch<1, false>() : launch<kMostRows, false>();
  }
};

}  // namespace

void launch_multiply_few_rows(const Int8Layer& layer, const LayerRows& rows, Stream stream) {
  if (rows.rows == 0 || layer.outputs == 0) return;
  visit_layer_types(layer, rows, [&](auto of_rows, auto of_scales) {
    using T = CudaFloat<decltype(of_rows)>;
    using S = CudaFloat<decltype(of_scales)>;
    FewRows<T, S>{layer, rows, stream}.launch_any();
  });
}

void launch_scale_products(const Int8Layer& layer, const ProductColumns& columns, const LayerRows& rows,
                           Stream stream) {
  visit_layer_types(layer, rows, [&](auto of_rows, auto of_scales) {
    using T = CudaFloat<decltype(of_rows)>;
    using S = CudaFloat<decltype(of_scales)>;
    const OutputScales<S> scales{static_cast<const S*>(layer.scales), static_cast<const S*>(layer.bias)};
    const ScaleProducts<T, S> scale{columns, scales, static_cast<T*>(rows.y), layer.outputs};
    launch_for_each_part(scale, rows.rows, columns.outputs, stream, "weight_only_int8_linear");
  });
}

}  // namespace narrowcast::cuda

// The affine uint8 operators on the CPU: passes tensors as pointers, and divides the work among threads. The division
// changes no bit, because ranges are merged exactly and every other result depends on one element only.
#include <ATen/Parallel.h>
#include <ATen/core/Tensor.h>
#include <c10/util/Exception.h>
#include <torch/library.h>

#include <algorithm>
#include <cstdint>
#include <vector>

#include "ops/cpu/affine_uint8/affine_uint8_kernels.h"
#include "ops/operators/affine_uint8_operators.h"
#include "ops/operators/meta.h"

namespace narrowcast::cpu {
namespace {

// Elements per thread, enough to start one for: some microseconds of work.
constexpr int64_t kGrain = int64_t{1} << 15;

template <class T>
AffineRange find_range_in_parallel(const T* x, int64_t n) {
  const auto join_part = [x](int64_t begin, int64_t end, AffineRange range) {
    return codec::merge(range, find_range(x + begin, end - begin));
  };
  return at::parallel_reduce(0, n, kGrain, AffineRange{}, join_part, codec::merge);
}

// The destination of each channel's qparams.
struct QparamsOut {
  float* scales;
  int32_t* zero_points;
  void store(int64_t channel, AffineRange range) const {
    const AffineQparams qparams = codec::choose_qparams(range);
    scales[channel] = qparams.scale;
    zero_points[channel] = qparams.zero_point;
  }
};

// Qparams of `channels` rows of `row` elements (at least one) each; the rows are contiguous.
template <class T>
void choose_for_rows(const T* x, int64_t channels, int64_t row, QparamsOut out) {
  if (channels < at::get_num_threads()) {  // Few rows: all threads work on each row.
    for (int64_t channel = 0; channel < channels; ++channel) {
      out.store(channel, find_range_in_parallel(x + channel * row, row));
    }
    return;
  }
  at::parallel_for(0, channels, std::max<int64_t>(1, kGrain / row), [&](int64_t begin, int64_t end) {
    for (int64_t channel = begin; channel < end; ++channel) {
      out.store(channel, find_range(x + channel * row, row));
    }
  });
}

// Calls body(channel, first, size) for parts of rows that cover all `numel` elements of `channels` equal rows. Elements
// first to first + size - 1 belong to one channel.
template <class Body>
void for_each_part_of_rows(int64_t numel, int64_t channels, const Body& body) {
  if (numel == 0) {
    return;
  }
  const int64_t row = numel / channels;
  at::parallel_for(0, numel, kGrain, [&](int64_t begin, int64_t end) {
    while (begin < end) {
      const int64_t channel = begin / row;
      const int64_t stop = std::min(end, (channel + 1) * row);
      body(channel, begin, stop - begin);
      begin = stop;
    }
  });
}

// Reads each channel's zero point, which must be a whole number in [0, 255].
template <class T>
void read_zero_points(const at::Tensor& zero_points, const char* name, std::vector<AffineQparams>& qparams) {
  constexpr auto kGreatest = static_cast<T>(codec::kAffineGreatestCode);
  const T* values = zero_points.const_data_ptr<T>();
  for (size_t channel = 0; channel < qparams.size(); ++channel) {
    const T value = values[channel];
    TORCH_CHECK_VALUE(value >= 0 && value <= kGreatest && value == static_cast<T>(static_cast<int32_t>(value)), name,
                      " must hold integers in [0, ", kGreatest, "], but element ", channel, " is ", value);
    qparams[channel].zero_point = static_cast<int32_t>(value);
  }
}

std::vector<AffineQparams> read_qparams(const AffineQparamTensors& tensors) {
  std::vector<AffineQparams> qparams(static_cast<size_t>(tensors.scales.numel()));
  const at::Tensor flat_scales = tensors.scales.contiguous();
  for (size_t channel = 0; channel < qparams.size(); ++channel) {
    qparams[channel].scale = flat_scales.const_data_ptr<float>()[channel];
  }
  if (tensors.zero_points.scalar_type() == at::kInt) {
    read_zero_points<int32_t>(tensors.zero_points.contiguous(), tensors.name_of_zero_points, qparams);
  } else {
    read_zero_points<float>(tensors.zero_points.contiguous(), tensors.name_of_zero_points, qparams);
  }
  return qparams;
}

struct AffineKernelsOnRows {
  static void choose_for_rows(const at::Tensor& dense, int64_t rows, const at::Tensor& scales,
                              const at::Tensor& zero_points) {
    const QparamsOut out{scales.mutable_data_ptr<float>(), zero_points.mutable_data_ptr<int32_t>()};
    meta::visit_float(dense.scalar_type(), [&](auto zero) {
      cpu::choose_for_rows(dense.const_data_ptr<decltype(zero)>(), rows, dense.numel() / rows, out);
    });
  }

  static void quantize_rows(const at::Tensor& x, const AffineQparamTensors& tensors, const at::Tensor& codes) {
    const std::vector<AffineQparams> qparams = read_qparams(tensors);
    auto* out = codes.mutable_data_ptr<uint8_t>();
    meta::visit_float(x.scalar_type(), [&](auto zero) {
      const auto* in = x.const_data_ptr<decltype(zero)>();
      for_each_part_of_rows(x.numel(), static_cast<int64_t>(qparams.size()),
                            [&](int64_t channel, int64_t first, int64_t size) {
                              quantize(in + first, size, qparams[static_cast<size_t>(channel)], out + first);
                            });
    });
  }

  static void dequantize_rows(const at::Tensor& q, const AffineQparamTensors& tensors, const at::Tensor& decoded) {
    const std::vector<AffineQparams> qparams = read_qparams(tensors);
    const auto* in = q.const_data_ptr<uint8_t>();
    auto* out = decoded.mutable_data_ptr<float>();
    for_each_part_of_rows(q.numel(), static_cast<int64_t>(qparams.size()),
                          [&](int64_t channel, int64_t first, int64_t size) {
                            dequantize(in + first, size, qparams[static_cast<size_t>(channel)], out + first);
                          });
  }
};

}  // namespace

TORCH_LIBRARY_IMPL(narrowcast, CPU, m) { AffineUint8Operators<AffineKernelsOnRows>::add_to(m); }

}  // namespace narrowcast::cpu

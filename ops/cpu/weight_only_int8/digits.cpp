#include "ops/cpu/weight_only_int8/digits.h"

#include <ATen/Parallel.h>
#include <hwy/aligned_allocator.h>

#include <algorithm>
#include <vector>

#include "ops/cpu/weight_only_int8/digit_kernels.h"

namespace narrowcast::cpu {
namespace {

// Bytes of digits, for as many rows as stay in a third-level cache while all codes are read. Each digit is multiplied
// by 32 codes, so the digits need not be read fast.
constexpr int64_t kChunkBytes = int64_t{4} << 20;

// Products of bytes per thread, enough to start one for: some microseconds of work.
constexpr int64_t kDigitGrain = int64_t{1} << 20;

// Divides rows into the fewest chunks that fit the cache, of about equal size: each chunk costs a pass over the codes.
int64_t rows_per_chunk(int64_t rows, int64_t planes, int64_t padded) {
  const int64_t rows_per_panel = kPanelDigitRows / planes;
  const int64_t panels = (rows + rows_per_panel - 1) / rows_per_panel;
  const int64_t most = std::max<int64_t>(1, kChunkBytes / (kPanelDigitRows * padded));
  const int64_t chunks = (panels + most - 1) / most;
  return (panels + chunks - 1) / chunks * rows_per_panel;
}

// Memory for the digits of one chunk of rows, reused for all chunks.
class ChunkBuffer {
 public:
  ChunkBuffer(int64_t rows, int64_t planes, int64_t padded)
      : planes_(planes),
        padded_(padded),
        digits_(hwy::AllocateAligned<int8_t>(static_cast<size_t>(rows * planes * padded))),
        units_(static_cast<size_t>(rows)),
        corrections_(static_cast<size_t>(rows * planes)) {}

  DigitRows for_rows(size_t rows) {
    return {static_cast<int64_t>(rows), planes_, padded_, digits_.get(), units_.data(), corrections_.data()};
  }

 private:
  int64_t planes_;
  int64_t padded_;
  hwy::AlignedFreeUniquePtr<int8_t[]> digits_;
  std::vector<double> units_;
  std::vector<int32_t> corrections_;
};

template <class T>
void multiply_chunk(std::span<const Row<T>> rows, const Int8Layer& layer, const DigitRows& digits) {
  const DigitKernels<T>& kernels = *digit_kernels<T>();
  at::parallel_for(0, digits.rows, std::max<int64_t>(1, (kDigitGrain >> 5) / digits.padded),
                   [&](int64_t begin, int64_t end) {
                     for (int64_t row = begin; row < end; ++row) {
                       kernels.split(rows[static_cast<size_t>(row)].x, layer.inputs, row, digits);
                     }
                   });
  std::vector<T*> y;
  for (const Row<T>& row : rows) y.push_back(row.y);
  const int64_t blocks = (layer.outputs + kBlockOutputs - 1) / kBlockOutputs;
  const int64_t work = digits.rows * digits.planes * digits.padded * kBlockOutputs;
  at::parallel_for(0, blocks, std::max<int64_t>(1, kDigitGrain / work), [&](int64_t begin, int64_t end) {
    kernels.multiply(digits, layer, {begin, end}, y.data());
  });
}

}  // namespace

template <class T>
void multiply_digits(std::span<const Row<T>> rows, const Int8Layer& layer, int64_t planes) {
  if (rows.empty()) return;
  const int64_t padded = (layer.inputs + kDigitStep - 1) / kDigitStep * kDigitStep;
  const auto chunk_rows =
      std::min(static_cast<size_t>(rows_per_chunk(static_cast<int64_t>(rows.size()), planes, padded)), rows.size());
  ChunkBuffer buffer(static_cast<int64_t>(chunk_rows), planes, padded);
  for (size_t first = 0; first < rows.size(); first += chunk_rows) {
    const std::span<const Row<T>> chunk = rows.subspan(first, std::min(chunk_rows, rows.size() - first));
    multiply_chunk(chunk, layer, buffer.for_rows(chunk.size()));
  }
}

template void multiply_digits(std::span<const Row<float>> rows, const Int8Layer& layer, int64_t planes);
template void multiply_digits(std::span<const Row<c10::BFloat16>> rows, const Int8Layer& layer, int64_t planes);

}  // namespace narrowcast::cpu

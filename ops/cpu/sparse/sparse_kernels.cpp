#include "ops/cpu/sparse/sparse_kernels.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "ops/cpu/sparse/sparse_kernels.cpp"
// The next include compiles this file once per instruction set.
#include <hwy/foreach_target.h>
// Keep the others below it.
#include <hwy/highway.h>

#include <c10/util/BFloat16.h>
#include <c10/util/Half.h>

#include <functional>

HWY_BEFORE_NAMESPACE();
namespace narrowcast::cpu::HWY_NAMESPACE {
namespace hn = hwy::HWY_NAMESPACE;

using codec::wire::SparseLayout;
using codec::wire::SparseThreshold;

// Vectors of magnitude bits. As signed numbers they have the same order, and comparisons are faster.
constexpr hn::ScalableTag<int32_t> kLanes{};

HWY_INLINE auto magnitudes(const float* x) {
  const hn::ScalableTag<float> d;
  return hn::And(hn::BitCast(kLanes, hn::LoadU(d, x)), hn::Set(kLanes, 0x7FFFFFFF));
}

HWY_INLINE int32_t magnitude(float x) { return static_cast<int32_t>(codec::magnitude_bits(x)); }

uint32_t largest_magnitude(const float* x, int64_t n) {
  const auto lanes = static_cast<int64_t>(hn::Lanes(kLanes));
  auto largest = hn::Zero(kLanes);
  int64_t i = 0;
  for (; i + lanes <= n; i += lanes) {
    largest = hn::Max(largest, magnitudes(x + i));
  }
  int32_t result = hn::GetLane(hn::MaxOfLanes(kLanes, largest));
  for (; i < n; ++i) {
    result = std::max(result, magnitude(x[i]));
  }
  return static_cast<uint32_t>(result);
}

// The number of elements with at least these magnitude bits. Two sums, because each addition waits for the one before.
int64_t count_from(const float* x, int64_t n, uint32_t bits) {
  const auto lanes = static_cast<int64_t>(hn::Lanes(kLanes));
  const auto below = hn::Set(kLanes, static_cast<int32_t>(bits) - 1);
  auto even = hn::Zero(kLanes);
  auto odd = hn::Zero(kLanes);
  int64_t i = 0;
  for (; i + 2 * lanes <= n; i += 2 * lanes) {
    even = hn::Sub(even, hn::VecFromMask(kLanes, hn::Gt(magnitudes(x + i), below)));
    odd = hn::Sub(odd, hn::VecFromMask(kLanes, hn::Gt(magnitudes(x + i + lanes), below)));
  }
  int64_t count = hn::GetLane(hn::SumOfLanes(kLanes, hn::Add(even, odd)));
  for (; i < n; ++i) {
    count += magnitude(x[i]) >= static_cast<int32_t>(bits) ? 1 : 0;
  }
  return count;
}

// The places of the kept elements, in order. Most vectors contain none.
void find_places(const float* x, int64_t n, const SparseThreshold& threshold, uint16_t* places) {
  const auto lanes = static_cast<int64_t>(hn::Lanes(kLanes));
  const auto least = static_cast<int32_t>(threshold.least);
  const auto below = hn::Set(kLanes, least - 1);
  int64_t equal = threshold.equal;
  const auto take = [&](int64_t begin, int64_t end) {
    for (int64_t i = begin; i < end; ++i) {
      if (magnitude(x[i]) > least || (magnitude(x[i]) == least && equal-- > 0)) {
        *places++ = static_cast<uint16_t>(i);
      }
    }
  };
  int64_t i = 0;
  for (; i + lanes <= n; i += lanes) {
    if (!hn::AllFalse(kLanes, hn::Gt(magnitudes(x + i), below))) {
      take(i, i + lanes);
    }
  }
  take(i, n);
}

void encode_block(int per_mille, const float* x, int64_t n, uint8_t* bytes) {
  const SparseLayout layout = codec::wire::sparse_layout(per_mille, n);
  const uint32_t largest = largest_magnitude(x, n);
  if (largest >= codec::kInfBits) {
    return codec::wire::encode_sparse_nan(layout, bytes);
  }
  uint16_t places[codec::wire::kMostKept];
  const SparseThreshold threshold =
      codec::wire::sparse_threshold(largest, layout, [&](uint32_t bits) { return count_from(x, n, bits); });
  find_places(x, n, threshold, places);
  codec::wire::encode_sparse_places(layout, x, places, bytes);
}

}  // namespace narrowcast::cpu::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace narrowcast::cpu {

HWY_EXPORT(encode_block);

void sparse_encode_block(int per_mille, const float* x, int64_t n, uint8_t* bytes) {
  HWY_DYNAMIC_DISPATCH(encode_block)(per_mille, x, n, bytes);
}

template <class T>
void sparse_encode(int per_mille, const T* x, int64_t n, uint8_t* bytes) {
  codec::wire::for_sparse_blocks(per_mille, n, [&](int64_t first, int64_t count, int64_t byte) {
    if constexpr (std::is_same_v<T, float>) {
      sparse_encode_block(per_mille, x + first, count, bytes + byte);
    } else {
      SparseTile tile;
      for (int64_t i = 0; i < count; ++i) {
        tile[static_cast<size_t>(i)] = static_cast<float>(x[first + i]);
      }
      sparse_encode_block(per_mille, tile.data(), count, bytes + byte);
    }
  });
}

template void sparse_encode(int, const float*, int64_t, uint8_t*);
template void sparse_encode(int, const double*, int64_t, uint8_t*);
template void sparse_encode(int, const c10::BFloat16*, int64_t, uint8_t*);
template void sparse_encode(int, const c10::Half*, int64_t, uint8_t*);

void sparse_average_block(int per_mille, const RankParts& parts, int64_t byte, float* mean) {
  const codec::wire::SparseLayout layout = codec::wire::sparse_layout(per_mille, parts.n);
  const auto divisor = static_cast<float>(parts.divisor());
  SparseTile tile;
  float* const sum = tile.data();
  std::fill_n(sum, parts.n, 0.0F);
  for (int64_t rank = 0; rank < parts.ranks; ++rank) {
    const uint8_t* const message = parts.messages[rank];
    const auto put = [&](int64_t, int64_t place, float value) { sum[place] += value; };
    if (message == nullptr) {
      std::transform(sum, sum + parts.n, parts.own, sum, std::plus<>());
    } else if (!codec::wire::read_sparse_block(layout, message + byte, put)) {
      std::fill_n(sum, parts.n, codec::float_of_bits(codec::kQuietNanBits));
    }
  }
  std::transform(sum, sum + parts.n, mean, [=](float x) { return x / divisor; });
}

void sparse_average(int per_mille, const RankParts& parts, float* mean) {
  codec::wire::for_sparse_blocks(per_mille, parts.n, [&](int64_t first, int64_t count, int64_t byte) {
    RankParts block = parts;
    block.own = parts.own == nullptr ? nullptr : parts.own + first;
    block.n = count;
    sparse_average_block(per_mille, block, byte, mean + first);
  });
}

}  // namespace narrowcast::cpu
#endif  // HWY_ONCE

// Codecs of CPU tensors.
#include <hwy/cache_control.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <memory>
#include <type_traits>
#include <vector>

#include <narrowcast/wire_format.h>
#include "ops/collectives/all_reduce/codec/wire_codec.h"
#include "ops/cpu/message/messages.h"
#include "ops/cpu/wire/element_copy.h"
#include "ops/cuda/wire/wire_kernels.h"
#include "ops/operators/meta.h"

namespace narrowcast::collectives {
namespace {

using codec::wire::Rounding;
using cpu::for_wire_parts;
using cpu::kWireGrain;

static_assert(cuda::kShardGrain == kWireGrain, "shards must begin at the same elements on all devices");

using Tile = std::array<float, kWireGrain>;

// Calls body(first element, elements) for each grain, so that a grain's intermediate values stay in the L1 cache.
template <class Body>
void for_grains(int64_t n, const Body& body) {
  for_wire_parts(n, [&](int64_t part, int64_t part_numel) {
    for (int64_t first = part; first < part + part_numel; first += kWireGrain) {
      body(first, std::min(kWireGrain, part + part_numel - first));
    }
  });
}

// Calls body(first element, elements) for parts of the segment that a kernel of the format can take. Kernels that need
// contiguous elements get one grain at a time if the order is permuted. Only the ranks of a node do this, for arrays
// that are not float32.
template <class Messages, class Body>
void for_segment_parts(const ArraySegment& segment, const Body& body) {
  if (Messages::kTakesAnyOrder || segment.order.is_identity()) {
    for_wire_parts(segment.range.numel, body);
  } else {
    for_grains(segment.range.numel, body);
  }
}

// Elements of the segment.
template <class T>
cpu::WireElements<T> elements_of(const ArraySegment& segment, int64_t first, int64_t n) {
  auto* const array = static_cast<T*>(segment.array.mutable_data_ptr());
  return {array, n, segment.order.grain_order(), segment.range.begin + first};
}

// Pointer to element `first` and the rest of its grain.
template <class T>
T* grain_of(const ArraySegment& segment, int64_t first) {
  return elements_of<T>(segment, first, 0).grain(0);
}

// Prefetches a later grain of a permuted array. In any other array the processor detects the stream itself.
template <class T>
void prefetch_next(const ArraySegment& segment, int64_t first) {
  if (segment.order.is_identity()) {
    return;
  }
  constexpr int64_t kInCacheLine = 64 / static_cast<int64_t>(sizeof(T));
  const T* const upcoming = elements_of<const T>(segment, 0, segment.range.numel).upcoming(first);
  for (int64_t i = 0; upcoming != nullptr && i < kWireGrain; i += kInCacheLine) {
    hwy::Prefetch(upcoming + i);
  }
}

// Elements from `first` on, plus their residuals if not null, as float32: in place, or in `tile`.
template <class T>
const float* load(const ArraySegment& segment, int64_t first, const float* residual, int64_t n, Tile& tile) {
  prefetch_next<T>(segment, first);
  const T* const x = grain_of<const T>(segment, first);
  if constexpr (std::is_same_v<T, float>) {
    if (residual == nullptr) {
      return x;
    }
  }
  for (int64_t i = 0; i < n; ++i) {
    tile[i] = static_cast<float>(x[i]) + (residual == nullptr ? -0.0F : residual[i]);  // Adding -0 changes no value.
  }
  return tile.data();
}

template <class T>
void store(const Tile& tile, int64_t n, T* x) {
  for (int64_t i = 0; i < n; ++i) {
    x[i] = static_cast<T>(tile[i]);
  }
}

float* from(float* residual, int64_t first) { return residual == nullptr ? nullptr : residual + first; }

// The residuals of the elements of a message. If the message is not finite they stay unchanged.
struct SentResiduals {
  float* kept = nullptr;   // Null, or replaced by the rounding error.
  float* spent = nullptr;  // Null, or replaced by 0.

  bool are_none() const { return kept == nullptr && spent == nullptr; }
  SentResiduals at(int64_t first) const { return {from(kept, first), from(spent, first)}; }
};

// Encodes a grain that begins at element `first`, then updates its residuals.
template <class Writer>
void write_grain(const Writer& writer, int64_t first, const float* sent, int64_t n, const SentResiduals& residuals) {
  writer.write(first, cpu::WireInput<float>{sent, n});
  if (residuals.are_none()) {
    return;
  }
  Tile lacking;
  writer.read_back(first, n, lacking.data());
  for (int64_t i = 0; i < n; ++i) {
    lacking[i] = sent[i] - lacking[i];
  }
  if (residuals.kept != nullptr) {
    for (int64_t i = 0; i < n; ++i) {
      residuals.kept[i] = std::isfinite(lacking[i]) ? lacking[i] : residuals.kept[i];
    }
  }
  if (residuals.spent != nullptr) {
    for (int64_t i = 0; i < n; ++i) {
      residuals.spent[i] = std::isfinite(lacking[i]) ? 0.0F : residuals.spent[i];
    }
  }
}

template <class Messages, class T>
void encode_with_residual(typename Messages::Writer& writer, const ArraySegment& segment) {
  const auto for_sums = [&](const auto& body) {
    for_grains(segment.range.numel, [&](int64_t first, int64_t n) {
      Tile tile;
      body(first, n, load<T>(segment, first, segment.residual + first, n, tile));
    });
  };
  if constexpr (Messages::kMeasured) {
    for_sums([&](int64_t first, int64_t n, const float* sum) { writer.measure(first, cpu::WireInput<float>{sum, n}); });
    writer.settle();
  }
  for_sums([&](int64_t first, int64_t n, const float* sum) {
    write_grain(writer, first, sum, n, {.kept = segment.residual + first});
  });
}

// Writes the mean of a grain that begins at element `first`. The own part includes the segment's residual;
// `mean_residual` is added to the mean if it is not null.
template <class T, class Ranks>
void average_grain(const Ranks& ranks, const ArraySegment& segment, const float* mean_residual, int64_t first,
                   cpu::WireOutput mean) {
  Tile own;
  ranks.average(first, {load<T>(segment, first, from(segment.residual, first), mean.n, own), mean.n}, mean);
  for (int64_t i = 0; mean_residual != nullptr && i < mean.n; ++i) {
    mean.x[i] += mean_residual[first + i];
  }
}

template <class T>
void average_and_encode_grains(const cpu::FixedWriter& writer, const cpu::FixedRankReader& ranks,
                               const ArraySegment& segment, float* mean_residual) {
  for_grains(segment.range.numel, [&](int64_t first, int64_t n) {
    Tile sum;
    average_grain<T>(ranks, segment, mean_residual, first, {sum.data(), n});
    write_grain(writer, first, sum.data(), n, SentResiduals{mean_residual, segment.residual}.at(first));
  });
}

// For a message whose step is computed first: the means wait in an array.
template <class T>
void average_and_measure(cpu::VariableWriter& writer, const cpu::VariableRankReader& ranks, const ArraySegment& segment,
                         float* mean_residual, float* sums) {
  if constexpr (std::is_same_v<T, float>) {
    if (segment.residual == nullptr && mean_residual == nullptr) {
      for_wire_parts(segment.range.numel, [&](int64_t first, int64_t n) {
        ranks.average_and_measure(writer, first, elements_of<const T>(segment, first, n), {sums + first, n});
      });
      return;
    }
  }
  for_grains(segment.range.numel, [&](int64_t first, int64_t n) {
    average_grain<T>(ranks, segment, mean_residual, first, {sums + first, n});
    writer.measure(first, cpu::WireInput<float>{sums + first, n});
  });
}

void write_sums(const cpu::VariableWriter& writer, const float* sums, int64_t numel, const SentResiduals& residuals) {
  if (residuals.are_none()) {
    for_wire_parts(numel, [&](int64_t first, int64_t n) {
      writer.write(first, cpu::WireInput<float>{sums + first, n});
    });
    return;
  }
  for_grains(numel,
             [&](int64_t first, int64_t n) { write_grain(writer, first, sums + first, n, residuals.at(first)); });
}

// The codec of one kind of format: Messages is FixedMessages or VariableMessages.
template <class Messages>
class CpuCodec final : public WireCodec {
 public:
  using WireCodec::WireCodec;

  void encode(const Rounding& rounding, const ArraySegment& segment, uint8_t* message) const override {
    auto writer = messages().writer(rounding, segment.range.numel, message);
    meta::visit_float(segment.array.scalar_type(), [&](auto zero) {
      using T = decltype(zero);
      if (segment.residual != nullptr) {
        encode_with_residual<Messages, T>(writer, segment);
        return;
      }
      cpu::write_parts<Messages>(
          writer, [&](const auto& body) { for_segment_parts<Messages>(segment, body); },
          [&](int64_t first, int64_t n) { return elements_of<const T>(segment, first, n); });
    });
  }

  void decode(const uint8_t* message, const ArraySegment& segment) const override {
    const auto reader = messages().reader(message, segment.range.numel);
    if (segment.array.scalar_type() == at::kFloat) {
      for_segment_parts<Messages>(
          segment, [&](int64_t first, int64_t n) { reader.decode(first, elements_of<float>(segment, first, n)); });
      return;
    }
    meta::visit_float(segment.array.scalar_type(), [&](auto zero) {
      for_grains(segment.range.numel, [&](int64_t first, int64_t n) {
        Tile tile;
        reader.decode(first, {tile.data(), n});
        store(tile, n, grain_of<decltype(zero)>(segment, first));
      });
    });
  }

  void reduce(const RankMessages& by_rank, const ArraySegment& segment, Reduction reduction) const override {
    const auto ranks = messages().rank_reader(by_rank, segment.range.numel, reduction);
    if (segment.array.scalar_type() == at::kFloat) {
      for_segment_parts<Messages>(segment, [&](int64_t first, int64_t n) {
        ranks.average(first, elements_of<const float>(segment, first, n), elements_of<float>(segment, first, n));
      });
      return;
    }
    meta::visit_float(segment.array.scalar_type(), [&](auto zero) {
      for_grains(segment.range.numel, [&](int64_t first, int64_t n) {
        using T = decltype(zero);
        Tile own;
        Tile mean;
        ranks.average(first, {load<T>(segment, first, nullptr, n, own), n}, {mean.data(), n});
        store(mean, n, grain_of<T>(segment, first));
      });
    });
  }

  void average_and_encode(const Rounding& rounding, const RankMessages& by_rank, const ArraySegment& segment,
                          float* mean_residual, uint8_t* message) const override {
    const int64_t numel = segment.range.numel;
    const auto ranks = messages().rank_reader(by_rank, numel);
    auto writer = messages().writer(rounding, numel, message);
    if constexpr (Messages::kMeasured) {
      const std::unique_ptr<float[]> sums(new float[static_cast<size_t>(numel)]);
      meta::visit_float(segment.array.scalar_type(), [&](auto zero) {
        average_and_measure<decltype(zero)>(writer, ranks, segment, mean_residual, sums.get());
      });
      writer.settle();
      write_sums(writer, sums.get(), numel, {mean_residual, segment.residual});
    } else if (segment.array.scalar_type() == at::kFloat && segment.residual == nullptr && mean_residual == nullptr) {
      for_segment_parts<Messages>(segment, [&](int64_t first, int64_t n) {
        ranks.average_to(writer, first, n, grain_of<const float>(segment, first));
      });
    } else {
      meta::visit_float(segment.array.scalar_type(), [&](auto zero) {
        average_and_encode_grains<decltype(zero)>(writer, ranks, segment, mean_residual);
      });
    }
  }

 private:
  // Created for each message, because kernels depend on the instruction set in use.
  Messages messages() const { return Messages(format()); }
};

using FixedCodec = CpuCodec<cpu::FixedMessages>;
using VariableCodec = CpuCodec<cpu::VariableMessages>;

}  // namespace

const WireCodec& wire_codec(WireFormat format, at::DeviceType device) {
  static const WireCodecs codecs = WireCodecs::make<FixedCodec, VariableCodec>();
  return device == at::kCUDA ? gpu::wire_codec(format) : codecs.at(format);
}

void copy_segment(const ArraySegment& from, const ArraySegment& to) {
  for_wire_parts(from.range.numel, [&](int64_t first, int64_t n) {
    cpu::copy_elements(elements_of<const float>(from, first, n), elements_of<float>(to, first, n));
  });
}

}  // namespace narrowcast::collectives

#include "ops/collectives/mean/segment_codec.h"

#include <hwy/cache_control.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <memory>
#include <type_traits>
#include <vector>

#include <narrowcast/wire_format.h>
#include "ops/cpu/wire/element_copy.h"
#include "ops/cpu/wire/message_parts.h"
#include "ops/cuda/wire/wire_kernels.h"
#include "ops/meta/meta.h"

namespace narrowcast::collectives {
namespace {

using cpu::for_wire_parts;
using cpu::kWireGrain;

static_assert(cuda::kShardGrain == kWireGrain, "shards must begin at the same elements on all devices");

using Tile = std::array<float, kWireGrain>;

// Calls body(first element, elements) for every grain by itself: what is made of it stays in the first cache.
template <class Body>
void for_grains(int64_t n, const Body& body) {
  for_wire_parts(n, [&](int64_t part, int64_t part_numel) {
    for (int64_t first = part; first < part + part_numel; first += kWireGrain) {
      body(first, std::min(kWireGrain, part + part_numel - first));
    }
  });
}

// Calls body(first element, elements) for parts of the segment that a kernel of the format takes. Only those of
// variable formats take elements that are dealt out; in others the ranks of a node exchange arrays of other dtypes than
// float32 so.
template <class Body>
void for_segment_parts(WireFormat format, const ArraySegment& segment, const Body& body) {
  if (segment.order.is_arrays_own() || codec::wire::is_variable(format)) {
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

// Where element `first` is, and the rest of its grain.
template <class T>
T* grain_of(const ArraySegment& segment, int64_t first) {
  return elements_of<T>(segment, first, 0).grain(0);
}

// Asks for a later grain of an array that is dealt out. In another the processor sees a stream.
template <class T>
void ask_for_upcoming(const ArraySegment& segment, int64_t first) {
  if (segment.order.is_arrays_own()) {
    return;
  }
  constexpr int64_t kInCacheLine = 64 / static_cast<int64_t>(sizeof(T));
  const T* const upcoming = elements_of<const T>(segment, 0, segment.range.numel).upcoming(first);
  for (int64_t i = 0; upcoming != nullptr && i < kWireGrain; i += kInCacheLine) {
    hwy::Prefetch(upcoming + i);
  }
}

// Elements `first` and on with their residuals, unless those are null, as float32: where they are, or in `tile`.
template <class T>
const float* load(const ArraySegment& segment, int64_t first, const float* residual, int64_t n, Tile& tile) {
  ask_for_upcoming<T>(segment, first);
  const T* const x = grain_of<const T>(segment, first);
  if constexpr (std::is_same_v<T, float>) {
    if (residual == nullptr) {
      return x;
    }
  }
  for (int64_t i = 0; i < n; ++i) {
    tile[i] = static_cast<float>(x[i]) + (residual == nullptr ? -0.0F : residual[i]);  // -0 changes no number.
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

// The residuals that are in the elements of a message. Where the message is not finite they stay.
struct SentResiduals {
  float* kept = nullptr;   // Null, or replaced by what the message lacks.
  float* spent = nullptr;  // Null, or replaced by 0.

  bool are_none() const { return kept == nullptr && spent == nullptr; }
  SentResiduals at(int64_t first) const { return {from(kept, first), from(spent, first)}; }
};

// Writes a grain that begins at element `first`, and then its residuals.
void write_grain(const cpu::MessageWriter& writer, int64_t first, const float* sent, int64_t n,
                 const SentResiduals& residuals) {
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

template <class T>
void encode_with_residual(cpu::MessageWriter& writer, const ArraySegment& segment) {
  const auto for_sums = [&](const auto& body) {
    for_grains(segment.range.numel, [&](int64_t first, int64_t n) {
      Tile tile;
      body(first, n, load<T>(segment, first, segment.residual + first, n, tile));
    });
  };
  if (writer.measures()) {
    for_sums([&](int64_t first, int64_t n, const float* sum) { writer.measure(first, cpu::WireInput<float>{sum, n}); });
    writer.settle();
  }
  for_sums([&](int64_t first, int64_t n, const float* sum) {
    write_grain(writer, first, sum, n, {.kept = segment.residual + first});
  });
}

// The mean of a grain, of its own part with the segment's residual, and `mean_residual` where that is not null: to
// `sum`.
template <class T>
void average_grain(const cpu::RankReader& ranks, const ArraySegment& segment, const float* mean_residual, int64_t first,
                   int64_t n, float* sum) {
  Tile own;
  ranks.average(first, {load<T>(segment, first, from(segment.residual, first), n, own), n}, {sum, n});
  for (int64_t i = 0; mean_residual != nullptr && i < n; ++i) {
    sum[i] += mean_residual[first + i];
  }
}

template <class T>
void average_and_encode_grains(const cpu::MessageWriter& writer, const cpu::RankReader& ranks,
                               const ArraySegment& segment, float* mean_residual) {
  for_grains(segment.range.numel, [&](int64_t first, int64_t n) {
    Tile sum;
    average_grain<T>(ranks, segment, mean_residual, first, n, sum.data());
    write_grain(writer, first, sum.data(), n, SentResiduals{mean_residual, segment.residual}.at(first));
  });
}

// For a message that must be measured first: the means wait in an array.
template <class T>
void average_and_measure(cpu::MessageWriter& writer, const cpu::RankReader& ranks, const ArraySegment& segment,
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
    average_grain<T>(ranks, segment, mean_residual, first, n, sums + first);
    writer.measure(first, cpu::WireInput<float>{sums + first, n});
  });
}

void write_sums(const cpu::MessageWriter& writer, const float* sums, int64_t numel, const SentResiduals& residuals) {
  if (residuals.are_none()) {
    for_wire_parts(numel, [&](int64_t first, int64_t n) {
      writer.write(first, cpu::WireInput<float>{sums + first, n});
    });
    return;
  }
  for_grains(numel,
             [&](int64_t first, int64_t n) { write_grain(writer, first, sums + first, n, residuals.at(first)); });
}

}  // namespace

void encode_segment(const WireCoding& coding, const ArraySegment& segment, uint8_t* message) {
  if (segment.array.is_cuda()) {
    return gpu::encode_shards(coding, segment, {}, message);
  }
  meta::visit_float(segment.array.scalar_type(), [&](auto zero) {
    using T = decltype(zero);
    cpu::MessageWriter writer(coding.format, coding.rounding, segment.range.numel, message);
    if (segment.residual != nullptr) {
      encode_with_residual<T>(writer, segment);
      return;
    }
    cpu::write_parts(
        writer, [&](const auto& body) { for_segment_parts(coding.format, segment, body); },
        [&](int64_t first, int64_t n) { return elements_of<const T>(segment, first, n); });
  });
}

void decode_segment(WireFormat format, const uint8_t* message, const ArraySegment& segment) {
  if (segment.array.is_cuda()) {
    return gpu::decode_shards(format, message, {}, segment);
  }
  const cpu::MessageReader reader(format, message, segment.range.numel);
  if (segment.array.scalar_type() == at::kFloat) {
    for_segment_parts(format, segment,
                      [&](int64_t first, int64_t n) { reader.decode(first, elements_of<float>(segment, first, n)); });
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

void copy_segment(const ArraySegment& from, const ArraySegment& to) {
  for_wire_parts(from.range.numel, [&](int64_t first, int64_t n) {
    cpu::copy_elements(elements_of<const float>(from, first, n), elements_of<float>(to, first, n));
  });
}

namespace {

// Calls body(shard, the bytes between its message and the first one).
template <class Body>
void for_slots(const ShardSlots& slots, const Segment& whole, const Body& body) {
  int64_t slot = 0;
  for (int64_t shard = 0; shard < slots.shards; ++shard) {
    if (shard != slots.left_out) {
      const Segment elements = part_of(whole, shard, slots.shards, kWireGrain);
      body(part_of(elements, slots.chunk, slots.chunks, kWireGrain), slot++ * slots.stride);
    }
  }
}

// One kernel serves all shards, but for those whose messages have steps of their own to be found.
bool goes_in_one_launch(const ArraySegment& whole, WireFormat format) {
  return whole.array.is_cuda() && !codec::wire::is_variable(format);
}

}  // namespace

void encode_shards(const WireCoding& coding, const ArraySegment& whole, const ShardSlots& slots, uint8_t* messages) {
  if (goes_in_one_launch(whole, coding.format)) {
    return gpu::encode_shards(coding, whole, slots, messages);
  }
  for_slots(slots, whole.range, [&](const Segment& shard, int64_t byte) {
    float* const residual = whole.residual == nullptr ? nullptr : whole.residual + shard.begin;
    encode_segment({coding.format, coding.rounding.at(shard.begin)}, {whole.array, shard, residual}, messages + byte);
  });
}

void decode_shards(WireFormat format, const uint8_t* messages, const ShardSlots& slots, const ArraySegment& whole) {
  if (goes_in_one_launch(whole, format)) {
    return gpu::decode_shards(format, messages, slots, whole);
  }
  for_slots(slots, whole.range, [&](const Segment& shard, int64_t byte) {
    decode_segment(format, messages + byte, {whole.array, shard});
  });
}

void average_segments(WireFormat format, const RankMessages& messages, const ArraySegment& segment) {
  if (segment.array.is_cuda()) {
    return gpu::average_segments(format, messages, segment);
  }
  const cpu::RankReader ranks(format, messages, segment.range.numel);
  if (segment.array.scalar_type() == at::kFloat) {
    for_segment_parts(format, segment, [&](int64_t first, int64_t n) {
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

void average_and_encode_segments(const WireCoding& coding, const RankMessages& messages, const ArraySegment& segment,
                                 float* mean_residual, uint8_t* message) {
  if (segment.array.is_cuda()) {
    return gpu::average_and_encode_segments(coding, messages, segment, mean_residual, message);
  }
  const int64_t numel = segment.range.numel;
  const cpu::RankReader ranks(coding.format, messages, numel);
  cpu::MessageWriter writer(coding.format, coding.rounding, numel, message);
  const bool is_plain = segment.array.scalar_type() == at::kFloat && segment.residual == nullptr;
  if (is_plain && mean_residual == nullptr && !writer.measures()) {  // In one pass, without tiles.
    for_segment_parts(coding.format, segment, [&](int64_t first, int64_t n) {
      ranks.average_to(writer, first, n, grain_of<const float>(segment, first));
    });
    return;
  }
  meta::visit_float(segment.array.scalar_type(), [&](auto zero) {
    using T = decltype(zero);
    if (!writer.measures()) {
      return average_and_encode_grains<T>(writer, ranks, segment, mean_residual);
    }
    const std::unique_ptr<float[]> sums(new float[static_cast<size_t>(numel)]);
    average_and_measure<T>(writer, ranks, segment, mean_residual, sums.get());
    writer.settle();
    write_sums(writer, sums.get(), numel, {mean_residual, segment.residual});
  });
}

namespace {

class WireCodec final : public MeanCodec {
 public:
  WireCodec(WireFormat format, int64_t rank, const ElementOrder& order) : format_(format), rank_(rank), order_(order) {}

  int64_t grain() const override { return cpu::kWireGrain; }

  int64_t message_bytes(const Segment& chunk) const override { return encoded_size(chunk.numel, format_); }

  void encode(const MeanCall& call, const Segment& chunk, const at::Tensor& message) override {
    encode_own({format_, rank_, chunk, order_}, call, message.mutable_data_ptr<uint8_t>());
  }

  void average(const MeanCall& call, const Segment& chunk, const std::vector<at::Tensor>& messages) override {
    RankMessages by_rank;
    for (const at::Tensor& message : messages) {
      by_rank.push_back(message.const_data_ptr<uint8_t>());
    }
    average_segments(format_, by_rank, {call.array, chunk, nullptr, order_});
  }

 private:
  const WireFormat format_;
  const int64_t rank_;
  const ElementOrder order_;
};

WireCoding coding_of(const SentSegment& sent, const MeanCall& call, int64_t hop) {
  return {sent.format, rounding_of(call.rounding, sent.rank, hop).at(sent.range.begin)};
}

// The residual of the element `elements` behind the first one, or null.
float* residual_at(float* residual, int64_t elements) { return residual == nullptr ? nullptr : residual + elements; }

ArraySegment own_part(const SentSegment& sent, const MeanCall& call) {
  return {call.array, sent.range, residual_at(call.residuals.own, sent.range.begin), sent.order};
}

}  // namespace

std::unique_ptr<MeanCodec> wire_codec(WireFormat format, int64_t rank, const ElementOrder& order) {
  return std::make_unique<WireCodec>(format, rank, order);
}

void encode_own(const SentSegment& sent, const MeanCall& call, uint8_t* message) {
  encode_segment(coding_of(sent, call, 0), own_part(sent, call), message);
}

void encode_own_shards(const SentSegment& whole, const MeanCall& call, const ShardSlots& slots, uint8_t* messages) {
  encode_shards(coding_of(whole, call, 0), own_part(whole, call), slots, messages);
}

void encode_mean(const SentSegment& sent, const MeanCall& call, const RankMessages& parts, uint8_t* message) {
  const Segment shard = shard_of(sent.rank, static_cast<int64_t>(parts.size()), call.array.numel());
  float* const mean_residual = residual_at(call.residuals.mean, sent.range.begin - shard.begin);
  average_and_encode_segments(coding_of(sent, call, 1), parts, own_part(sent, call), mean_residual, message);
}

codec::wire::Rounding rounding_of(codec::wire::Rounding rounding, int64_t rank, int64_t hop) {
  constexpr uint64_t kOdd = 0x9E3779B97F4A7C15U;  // 2^64 / golden ratio: products of small numbers lie far apart.
  rounding.seed += kOdd * static_cast<uint64_t>(2 * rank + hop);
  return rounding;
}

}  // namespace narrowcast::collectives

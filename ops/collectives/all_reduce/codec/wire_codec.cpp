#include "ops/collectives/all_reduce/codec/wire_codec.h"

#include <memory>
#include <utility>

#include "ops/cpu/wire/wire_kernels.h"

namespace narrowcast::collectives {
namespace {

using codec::wire::Rounding;

// Calls body(shard, offset of its message in bytes from the first one).
template <class Body>
void for_slots(const ShardSlots& slots, const ElementRange& whole, const Body& body) {
  int64_t slot = 0;
  for (int64_t shard = 0; shard < slots.shards; ++shard) {
    if (shard != slots.left_out) {
      const ElementRange elements = part_of(whole, shard, slots.shards, cpu::kWireGrain);
      body(part_of(elements, slots.chunk, slots.chunks, cpu::kWireGrain), slot++ * slots.stride);
    }
  }
}

// The residual, advanced by `elements`, or null.
float* residual_at(float* residual, int64_t elements) { return residual == nullptr ? nullptr : residual + elements; }

class OneShotCodec final : public AllReduceCodec {
 public:
  OneShotCodec(std::unique_ptr<const WireCodec> codec, int64_t rank, const cpu::GrainOrder& order)
      : codec_(std::move(codec)), rank_(rank), order_(order) {}

  int64_t grain() const override { return grain_of(codec_->format()); }

  int64_t message_bytes(const ElementRange& chunk) const override {
    return encoded_size(chunk.numel, codec_->format());
  }

  void encode(const AllReduceCall& call, const ElementRange& chunk, const at::Tensor& message) override {
    const SentRange sent{rank_, chunk, order_};
    codec_->encode(sent.rounding(call, 0), sent.elements(call), message.mutable_data_ptr<uint8_t>());
  }

  void average(const AllReduceCall& call, const ElementRange& chunk, const std::vector<at::Tensor>& messages) override {
    RankMessages by_rank;
    for (const at::Tensor& message : messages) {
      by_rank.push_back(message.const_data_ptr<uint8_t>());
    }
    codec_->average(by_rank, {call.array, chunk, nullptr, order_});
  }

 private:
  const std::unique_ptr<const WireCodec> codec_;
  const int64_t rank_;
  const cpu::GrainOrder order_;
};

}  // namespace

void WireCodec::encode_shards(const Rounding& rounding, const ArraySlice& whole, const ShardSlots& slots,
                              uint8_t* messages) const {
  for_slots(slots, whole.range, [&](const ElementRange& shard, int64_t byte) {
    encode(rounding.at(shard.begin), {whole.array, shard, residual_at(whole.residual, shard.begin)}, messages + byte);
  });
}

void WireCodec::decode_shards(const uint8_t* messages, const ShardSlots& slots, const ArraySlice& whole) const {
  for_slots(slots, whole.range, [&](const ElementRange& shard, int64_t byte) {
    decode(messages + byte, {whole.array, shard});
  });
}

ArraySlice SentRange::elements(const AllReduceCall& call) const {
  return {call.array, range, residual_at(call.residuals.own, range.begin), order};
}

Rounding SentRange::rounding(const AllReduceCall& call, int64_t hop) const {
  return rounding_of(call.rounding, rank, hop).at(range.begin);
}

void encode_mean(const WireCodec& codec, const SentRange& sent, const AllReduceCall& call, const RankMessages& parts,
                 uint8_t* message) {
  const ElementRange shard = shard_of(sent.rank, static_cast<int64_t>(parts.size()), call.array.numel());
  float* const mean_residual = residual_at(call.residuals.mean, sent.range.begin - shard.begin);
  codec.average_and_encode(sent.rounding(call, 1), parts, sent.elements(call), mean_residual, message);
}

int64_t grain_of(WireFormat format) {
  return codec::wire::is_sparse(format) ? codec::wire::kSparseBlock : cpu::kWireGrain;
}

Rounding rounding_of(Rounding rounding, int64_t rank, int64_t hop) {
  constexpr uint64_t kOdd = 0x9E3779B97F4A7C15U;  // 2^64 / golden ratio: multiples by small numbers lie far apart.
  rounding.seed += kOdd * static_cast<uint64_t>(2 * rank + hop);
  return rounding;
}

std::unique_ptr<AllReduceCodec> one_shot_codec(WireFormat format, at::DeviceType device, int64_t rank,
                                               const cpu::GrainOrder& order) {
  return std::make_unique<OneShotCodec>(make_wire_codec(format, device), rank, order);
}

}  // namespace narrowcast::collectives

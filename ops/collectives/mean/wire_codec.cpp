#include "ops/collectives/mean/wire_codec.h"

#include <vector>

#include "ops/cpu/wire/wire_kernels.h"

namespace narrowcast::collectives {
namespace {

class WireCodec final : public MeanCodec {
 public:
  WireCodec(WireFormat format, int64_t rank) : format_(format), rank_(rank) {}

  int64_t grain() const override { return cpu::kWireGrain; }

  int64_t message_bytes(const Segment& chunk) const override { return encoded_size(chunk.numel, format_); }

  void encode(const MeanCall& call, const Segment& chunk, const at::Tensor& message) override {
    encode_own({format_, rank_, chunk}, call, message.mutable_data_ptr<uint8_t>());
  }

  void average(const MeanCall& call, const Segment& chunk, const std::vector<at::Tensor>& messages) override {
    RankMessages by_rank;
    for (const at::Tensor& message : messages) {
      by_rank.push_back(message.const_data_ptr<uint8_t>());
    }
    average_segments(format_, by_rank, {call.array, chunk});
  }

 private:
  const WireFormat format_;
  const int64_t rank_;
};

WireCoding coding_of(const SentSegment& sent, const MeanCall& call, int64_t hop) {
  return {sent.format, rounding_of(call.rounding, sent.rank, hop).at(sent.range.begin)};
}

// The residual of the element `elements` behind the first one, or null.
float* residual_at(float* residual, int64_t elements) { return residual == nullptr ? nullptr : residual + elements; }

ArraySegment own_part(const SentSegment& sent, const MeanCall& call) {
  return {call.array, sent.range, residual_at(call.residuals.own, sent.range.begin)};
}

}  // namespace

std::unique_ptr<MeanCodec> wire_codec(WireFormat format, int64_t rank) {
  return std::make_unique<WireCodec>(format, rank);
}

void encode_own(const SentSegment& sent, const MeanCall& call, uint8_t* message) {
  encode_segment(coding_of(sent, call, 0), own_part(sent, call), message);
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

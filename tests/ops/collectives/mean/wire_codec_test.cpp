// What a rank sends, as encode says it; the exchanges' own tests compare what all ranks make of it.
#include "ops/collectives/mean/segment_codec.h"

#include <ATen/ATen.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <vector>

#include "ops/cpu/wire/wire_kernels.h"

namespace narrowcast::collectives {
namespace {

constexpr WireFormat kFormat = WireFormat::kInt4B32;
constexpr int64_t kNumel = 2 * cpu::kWireGrain + 100;
// It has one grain, and begins behind the first one.
constexpr Segment kSecondGrain{cpu::kWireGrain, cpu::kWireGrain};

at::Tensor message_of(const Segment& segment) { return at::zeros({encoded_size(segment.numel, kFormat)}, at::kByte); }

at::Tensor decoded(const at::Tensor& message) { return decode(message, kFormat, kSecondGrain.numel); }

at::Tensor in_second_grain(const at::Tensor& array) { return array.narrow(0, kSecondGrain.begin, kSecondGrain.numel); }

TEST(EncodeOwn, RoundsByTheNumbersOfItsRankAndPlace) {
  at::manual_seed(1);
  const MeanCall call{at::randn({kNumel}), {true, 7, 3, 0}, {}};
  const at::Tensor message = message_of(kSecondGrain);
  encode_own({kFormat, 2, kSecondGrain}, call, message.mutable_data_ptr<uint8_t>());
  const auto seed = static_cast<int64_t>(rounding_of(call.rounding, 2, 0).seed);
  const EncodeOptions options{.seed = seed, .step = 3, .offset = kSecondGrain.begin};
  EXPECT_TRUE(at::equal(message, encode(in_second_grain(call.array), kFormat, options)));
}

TEST(EncodeOwn, AddsAndKeepsTheResidualOfItsPlace) {
  at::manual_seed(2);
  const at::Tensor residual = at::randn({kNumel});
  const at::Tensor before = residual.clone();
  const MeanCall call{at::randn({kNumel}), {}, {.own = residual.mutable_data_ptr<float>()}};
  const at::Tensor message = message_of(kSecondGrain);
  encode_own({kFormat, 0, kSecondGrain}, call, message.mutable_data_ptr<uint8_t>());
  const at::Tensor sum = in_second_grain(call.array + before);
  EXPECT_TRUE(at::equal(message, encode(sum, kFormat)));
  EXPECT_TRUE(at::equal(in_second_grain(residual), sum - decoded(message)));
  EXPECT_TRUE(at::equal(residual.narrow(0, 0, kSecondGrain.begin), before.narrow(0, 0, kSecondGrain.begin)));
}

// Rank 1 of two owns what begins at the second grain.
TEST(EncodeMean, KeepsTheResidualFromTheBeginningOfTheShard) {
  at::manual_seed(3);
  const Segment shard = shard_of(1, 2, kNumel);
  ASSERT_EQ(shard.begin, kSecondGrain.begin);
  const at::Tensor residual = at::zeros({shard.numel});
  const MeanCall call{at::randn({kNumel}), {}, {.mean = residual.mutable_data_ptr<float>()}};
  const at::Tensor part = at::randn({kSecondGrain.numel});
  const at::Tensor received = encode(part, kFormat);
  const at::Tensor message = message_of(kSecondGrain);
  encode_mean({kFormat, 1, kSecondGrain}, call, {received.const_data_ptr<uint8_t>(), nullptr},
              message.mutable_data_ptr<uint8_t>());
  const at::Tensor mean = (decoded(received) + in_second_grain(call.array)) / 2;
  EXPECT_TRUE(at::equal(message, encode(mean, kFormat)));
  EXPECT_TRUE(at::equal(residual.narrow(0, 0, kSecondGrain.numel), mean - decoded(message)));
}

TEST(RoundingOf, DiffersBetweenRanksAndHops) {
  std::vector<uint64_t> seeds;
  for (const int64_t rank : {0, 1, 2}) {
    for (const int64_t hop : {0, 1}) {
      seeds.push_back(rounding_of({}, rank, hop).seed);
    }
  }
  std::sort(seeds.begin(), seeds.end());
  EXPECT_EQ(std::adjacent_find(seeds.begin(), seeds.end()), seeds.end());
}

}  // namespace
}  // namespace narrowcast::collectives

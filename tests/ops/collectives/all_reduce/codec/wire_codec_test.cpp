// A rank's messages, compared with encode. The tests of the exchanges compare the results of all ranks.
#include "ops/collectives/all_reduce/codec/wire_codec.h"

#include <ATen/ATen.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <limits>
#include <string>
#include <vector>

#include "ops/collectives/all_reduce/array/element_order.h"
#include "ops/collectives/all_reduce/array/element_range.h"
#include "ops/collectives/all_reduce/codec/codec.h"
#include "ops/cpu/wire/wire_kernels.h"
#include "tests/ops/affine_uint8/reference.h"

namespace narrowcast::collectives {
namespace {

constexpr int64_t kNumel = 2 * cpu::kWireGrain + 100;
// One grain, after the first one.
constexpr ElementRange kSecondGrain{cpu::kWireGrain, cpu::kWireGrain};

at::Tensor in_second_grain(const at::Tensor& array) { return array.narrow(0, kSecondGrain.begin, kSecondGrain.numel); }

// One format whose messages can be split, one that is written in two passes, and one that drops elements.
class WireCodecOf : public ::testing::TestWithParam<WireFormat> {
 protected:
  at::Tensor message_of(const ElementRange& slice) const {
    return at::zeros({encoded_size(slice.numel, format_)}, at::kByte);
  }
  at::Tensor decoded(const at::Tensor& message) const { return decode(message, format_, kSecondGrain.numel); }

  const WireFormat format_ = GetParam();
};

TEST_P(WireCodecOf, OwnElementsRoundsByTheNumbersOfItsRankAndPlace) {
  at::manual_seed(1);
  const AllReduceCall call{at::randn({kNumel}), {true, 7, 3, 0}, {}};
  const at::Tensor message = message_of(kSecondGrain);
  const SentRange sent{2, kSecondGrain};
  make_wire_codec(format_, at::kCPU)
      ->encode(sent.rounding(call, 0), sent.elements(call), message.mutable_data_ptr<uint8_t>());
  const auto seed = static_cast<int64_t>(rounding_of(call.rounding, 2, 0).seed);
  const EncodeOptions options{.seed = seed, .step = 3, .offset = kSecondGrain.begin};
  EXPECT_TRUE(at::equal(message, encode(in_second_grain(call.array), format_, options)));
}

TEST_P(WireCodecOf, OwnElementsAddsAndKeepsTheResidualOfItsPlace) {
  at::manual_seed(2);
  const at::Tensor residual = at::randn({kNumel});
  const at::Tensor before = residual.clone();
  const AllReduceCall call{at::randn({kNumel}), {}, {.own = residual.mutable_data_ptr<float>()}};
  const at::Tensor message = message_of(kSecondGrain);
  const SentRange sent{0, kSecondGrain};
  make_wire_codec(format_, at::kCPU)
      ->encode(sent.rounding(call, 0), sent.elements(call), message.mutable_data_ptr<uint8_t>());
  const at::Tensor sum = in_second_grain(call.array + before);
  EXPECT_TRUE(at::equal(message, encode(sum, format_)));
  EXPECT_TRUE(at::equal(in_second_grain(residual), sum - decoded(message)));
  EXPECT_TRUE(at::equal(residual.narrow(0, 0, kSecondGrain.begin), before.narrow(0, 0, kSecondGrain.begin)));
}

// On several threads: each takes a part of the shard, whose elements are spread over the array.
TEST_P(WireCodecOf, ElementsThatAreDealtOutAreThoseOfAnArrayInTheirOrder) {
  if (codec::wire::is_sparse(format_)) GTEST_SKIP() << "sends arrays in their own order";
  const test::UseThreads threads(3);
  constexpr int64_t kLong = 300 * cpu::kWireGrain + 33;
  const ElementOrder order = ElementOrder::of(WireFormat::kVar4, kLong);
  const ElementRange shard = shard_of(1, 2, kLong);
  at::manual_seed(5);
  for (const at::ScalarType dtype : {at::kFloat, at::kBFloat16}) {
    for (const bool has_residual : {false, true}) {
      SCOPED_TRACE(::testing::Message() << dtype << (has_residual ? " with residual" : ""));
      const at::Tensor dealt = at::randn({kLong}).to(dtype);
      const at::Tensor ordered = order.take(dealt, {0, kLong}).clone();
      std::vector<at::Tensor> residuals(2, at::randn({shard.numel}));
      residuals[1] = residuals[0].clone();
      const ArraySlice slices[] = {
          {dealt, shard, has_residual ? residuals[0].mutable_data_ptr<float>() : nullptr, order.grain_order()},
          {ordered, shard, has_residual ? residuals[1].mutable_data_ptr<float>() : nullptr}};
      std::vector<at::Tensor> sent;
      for (const ArraySlice& slice : slices) {
        sent.push_back(message_of(shard));
        make_wire_codec(format_, at::kCPU)->encode({}, slice, sent.back().mutable_data_ptr<uint8_t>());
      }
      EXPECT_TRUE(at::equal(sent[0], sent[1]));
      const RankMessages by_rank{sent[0].const_data_ptr<uint8_t>(), nullptr};
      std::vector<at::Tensor> means;
      for (const ArraySlice& slice : slices) {
        means.push_back(message_of(shard));
        make_wire_codec(format_, at::kCPU)
            ->average_and_encode({}, by_rank, slice, nullptr, means.back().mutable_data_ptr<uint8_t>());
        make_wire_codec(format_, at::kCPU)->average(by_rank, slice);
      }
      EXPECT_TRUE(at::equal(means[0], means[1]));
      EXPECT_TRUE(at::equal(residuals[0], residuals[1]));
      EXPECT_TRUE(at::equal(order.take(dealt, {0, kLong}), ordered));
      for (const ArraySlice& slice : slices) {
        make_wire_codec(format_, at::kCPU)->decode(means[0].const_data_ptr<uint8_t>(), slice);
      }
      EXPECT_TRUE(at::equal(order.take(dealt, {0, kLong}), ordered));
    }
  }
}

// Rank 1 of two owns the shard that begins at the second grain.
TEST_P(WireCodecOf, TheMeanKeepsTheResidualFromTheBeginningOfTheShard) {
  at::manual_seed(3);
  const ElementRange shard = shard_of(1, 2, kNumel);
  ASSERT_EQ(shard.begin, kSecondGrain.begin);
  const at::Tensor residual = at::zeros({shard.numel});
  const AllReduceCall call{at::randn({kNumel}), {}, {.mean = residual.mutable_data_ptr<float>()}};
  const at::Tensor part = at::randn({kSecondGrain.numel});
  const at::Tensor received = encode(part, format_);
  const at::Tensor message = message_of(kSecondGrain);
  encode_mean(*make_wire_codec(format_, at::kCPU), {1, kSecondGrain}, call,
              {received.const_data_ptr<uint8_t>(), nullptr}, message.mutable_data_ptr<uint8_t>());
  const at::Tensor mean = (decoded(received) + in_second_grain(call.array)) / 2;
  EXPECT_TRUE(at::equal(message, encode(mean, format_)));
  EXPECT_TRUE(at::equal(residual.narrow(0, 0, kSecondGrain.numel), mean - decoded(message)));
}

// The own elements of the mean are not rounded.
TEST_P(WireCodecOf, TheMeanTakesTheOwnResidualWithIt) {
  at::manual_seed(4);
  const at::Tensor own = at::randn({kNumel});
  const at::Tensor before = own.clone();
  const AllReduceCall call{at::randn({kNumel}).to(at::kBFloat16), {}, {.own = own.mutable_data_ptr<float>()}};
  const at::Tensor received = encode(at::randn({kSecondGrain.numel}), format_);
  const at::Tensor message = message_of(kSecondGrain);
  encode_mean(*make_wire_codec(format_, at::kCPU), {1, kSecondGrain}, call,
              {received.const_data_ptr<uint8_t>(), nullptr}, message.mutable_data_ptr<uint8_t>());
  const at::Tensor sum = in_second_grain(call.array).to(at::kFloat) + in_second_grain(before);
  EXPECT_TRUE(at::equal(message, encode((decoded(received) + sum) / 2, format_)));
  EXPECT_EQ(in_second_grain(own).count_nonzero().item<int64_t>(), 0);
}

// The residuals are added again in the next step: the own residual contains values carried over from other buckets.
TEST_P(WireCodecOf, AMeanThatIsNotFiniteLeavesTheResidualsInItAlone) {
  at::manual_seed(5);
  const ElementRange shard = shard_of(1, 2, kNumel);
  for (const auto dtype : {at::kFloat, at::kBFloat16}) {
    for (const float bad : {std::numeric_limits<float>::quiet_NaN(), std::numeric_limits<float>::infinity()}) {
      const at::Tensor own = at::randn({kNumel});
      const at::Tensor mean = at::randn({shard.numel});
      const at::Tensor own_before = own.clone();
      const at::Tensor mean_before = mean.clone();
      const AllReduceCall call{
          at::randn({kNumel}).to(dtype), {}, {own.mutable_data_ptr<float>(), mean.mutable_data_ptr<float>()}};
      at::Tensor part = at::randn({kSecondGrain.numel});
      part[40].fill_(bad);
      const at::Tensor received = encode(part, format_);
      const at::Tensor message = message_of(kSecondGrain);
      encode_mean(*make_wire_codec(format_, at::kCPU), {1, kSecondGrain}, call,
                  {received.const_data_ptr<uint8_t>(), nullptr}, message.mutable_data_ptr<uint8_t>());
      const at::Tensor finite = decoded(message).isfinite();
      ASSERT_FALSE(finite[40].item<bool>());
      EXPECT_EQ(finite.any().item<bool>(), codec::wire::can_be_split(format_)) << "blocks, or all of the message";
      EXPECT_TRUE(at::equal(in_second_grain(own), in_second_grain(own_before).masked_fill(finite, 0)));
      const at::Tensor kept = mean.narrow(0, 0, kSecondGrain.numel);
      const at::Tensor kept_before = mean_before.narrow(0, 0, kSecondGrain.numel);
      EXPECT_TRUE(at::equal(kept.masked_fill(finite, 0), kept_before.masked_fill(finite, 0)));
      EXPECT_FALSE(finite.any().item<bool>() && at::equal(kept, kept_before));
    }
  }
}

INSTANTIATE_TEST_SUITE_P(Formats, WireCodecOf,
                         ::testing::Values(WireFormat::kInt4B32, WireFormat::kVar4, WireFormat::kTop2P31),
                         [](const auto& info) { return std::string(to_string(info.param)); });

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

// The codec of sparse formats in arrays of all types, compared with encode and decode.
#include "ops/collectives/all_reduce/codec/sparse_codec.h"

#include <ATen/ATen.h>
#include <gtest/gtest.h>

#include <cstdint>
#include <memory>
#include <string>

#include "ops/codec/sparse_top.h"
#include "ops/collectives/all_reduce/array/element_range.h"
#include "ops/cpu/wire/wire_kernels.h"

namespace narrowcast::collectives {
namespace {

// Two whole blocks and a part of one, within a longer array.
constexpr ElementRange kMiddle{3 * cpu::kWireGrain, 2 * codec::wire::kSparseBlock + 1001};
constexpr int64_t kLength = kMiddle.begin + kMiddle.numel + 77;

at::Tensor middle_of(const at::Tensor& array) { return array.narrow(0, kMiddle.begin, kMiddle.numel); }

class SparseCodecOf : public ::testing::TestWithParam<WireFormat> {
 protected:
  SparseCodecOf() { at::manual_seed(1); }

  at::Tensor empty_message() const { return at::zeros({encoded_size(kMiddle.numel, format_)}, at::kByte); }
  at::Tensor random_message() const { return encode(at::randn({kMiddle.numel}), format_); }
  at::Tensor decoded(const at::Tensor& message) const { return narrowcast::decode(message, format_, kMiddle.numel); }

  // Expects `values`, rounded, in the slice, and the rest as it was before.
  static void expect_slice(const at::Tensor& array, const at::Tensor& before, const at::Tensor& values) {
    at::Tensor expected = before.clone();
    middle_of(expected).copy_(values);
    EXPECT_TRUE(at::equal(array, expected)) << array.scalar_type();
  }

  const WireFormat format_ = GetParam();
  const std::unique_ptr<const WireCodec> codec_ = make_sparse_codec(format_);
};

constexpr at::ScalarType kTypes[] = {at::kFloat, at::kDouble, at::kHalf, at::kBFloat16};

TEST_P(SparseCodecOf, MessagesAreThoseOfEncode) {
  for (const at::ScalarType dtype : kTypes) {
    const at::Tensor array = at::randn({kLength}).to(dtype);
    const at::Tensor before = array.clone();
    const at::Tensor message = empty_message();
    codec_->encode({}, {array, kMiddle}, message.mutable_data_ptr<uint8_t>());
    EXPECT_TRUE(at::equal(message, encode(middle_of(array).to(at::kFloat), format_))) << dtype;
    EXPECT_TRUE(at::equal(array, before));
  }
}

TEST_P(SparseCodecOf, TheResidualIsAddedAndBecomesWhatWasNotSent) {
  for (const at::ScalarType dtype : kTypes) {
    const at::Tensor array = at::randn({kLength}).to(dtype);
    const at::Tensor residual = at::randn({kMiddle.numel});
    const at::Tensor sum = middle_of(array).to(at::kFloat) + residual;
    const at::Tensor message = empty_message();
    codec_->encode({}, {array, kMiddle, residual.mutable_data_ptr<float>()}, message.mutable_data_ptr<uint8_t>());
    EXPECT_TRUE(at::equal(message, encode(sum, format_))) << dtype;
    EXPECT_TRUE(at::equal(residual, sum - decoded(message))) << dtype;
  }
}

TEST_P(SparseCodecOf, DecodesIntoItsSliceOnly) {
  for (const at::ScalarType dtype : kTypes) {
    const at::Tensor array = at::randn({kLength}).to(dtype);
    const at::Tensor before = array.clone();
    const at::Tensor message = random_message();
    codec_->decode(message.const_data_ptr<uint8_t>(), {array, kMiddle});
    expect_slice(array, before, decoded(message));
  }
}

// This rank is the third of four, so that only the sum of a mean is rounded.
TEST_P(SparseCodecOf, ReducesInTheOrderOfRanks) {
  const at::Tensor others[] = {random_message(), random_message(), random_message()};
  const auto bytes = [&](size_t i) { return others[i].const_data_ptr<uint8_t>(); };
  const RankMessages messages{bytes(0), bytes(1), nullptr, bytes(2)};
  for (const at::ScalarType dtype : kTypes) {
    for (const Reduction reduction : {Reduction::kMean, Reduction::kSum}) {
      const at::Tensor array = at::randn({kLength}).to(dtype);
      const at::Tensor before = array.clone();
      at::Tensor expected =
          decoded(others[0]) + decoded(others[1]) + middle_of(array).to(at::kFloat) + decoded(others[2]);
      if (reduction == Reduction::kMean) expected = expected / 4;
      codec_->reduce(messages, {array, kMiddle}, reduction);
      expect_slice(array, before, expected);
    }
  }
}

TEST_P(SparseCodecOf, ReducesMessagesWithoutAnOwnPart) {
  const at::Tensor messages[] = {random_message(), random_message()};
  const at::Tensor array = at::full({kLength}, 1e6);
  const at::Tensor before = array.clone();
  codec_->reduce({messages[0].const_data_ptr<uint8_t>(), messages[1].const_data_ptr<uint8_t>()}, {array, kMiddle},
                 Reduction::kMean);
  expect_slice(array, before, (decoded(messages[0]) + decoded(messages[1])) / 2);
}

// The own residual goes into the mean whole, and the mean's residual keeps what the message lacks.
TEST_P(SparseCodecOf, AMeansMessageLeavesTheArrayAndUpdatesBothResiduals) {
  for (const at::ScalarType dtype : kTypes) {
    const at::Tensor array = at::randn({kLength}).to(dtype);
    const at::Tensor before = array.clone();
    const at::Tensor own = at::randn({kMiddle.numel});
    const at::Tensor kept = at::randn({kMiddle.numel});
    const at::Tensor other = random_message();
    const at::Tensor sent = (middle_of(array).to(at::kFloat) + own + decoded(other)) / 2 + kept;
    const at::Tensor message = empty_message();
    codec_->average_and_encode({}, {nullptr, other.const_data_ptr<uint8_t>()},
                               {array, kMiddle, own.mutable_data_ptr<float>()}, kept.mutable_data_ptr<float>(),
                               message.mutable_data_ptr<uint8_t>());
    EXPECT_TRUE(at::equal(message, encode(sent, format_))) << dtype;
    EXPECT_TRUE(at::equal(kept, sent - decoded(message))) << dtype;
    EXPECT_EQ(own.count_nonzero().item<int64_t>(), 0) << dtype;
    EXPECT_TRUE(at::equal(array, before)) << dtype;
  }
}

INSTANTIATE_TEST_SUITE_P(Formats, SparseCodecOf, ::testing::Values(WireFormat::kTop2P15, WireFormat::kTop2P31),
                         [](const auto& info) { return std::string(to_string(info.param)); });

}  // namespace
}  // namespace narrowcast::collectives

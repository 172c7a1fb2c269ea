// Difficult slices of CUDA tensors, compared with the CPU: unusual numbers, unaligned addresses, and more elements
// than 32 bits can count.
#include <ATen/ATen.h>
#include <c10/util/Exception.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <string>
#include <vector>

#include "ops/collectives/all_reduce/codec/wire_codec.h"
#include "tests/ops/wire_format/wire_inputs.h"
#include "tests/support/devices.h"

namespace narrowcast::collectives {
namespace {

using test::same_bits;

constexpr int64_t kHostileRanks = 3;
constexpr int64_t kHostileOwnRank = 1;

at::Tensor moved_to(const at::Tensor& x, c10::Device device, int64_t begin) {
  const at::Tensor memory = at::zeros({begin + x.numel()}, x.options().device(device));
  memory.narrow(0, begin, x.numel()).copy_(x);
  return memory.narrow(0, begin, x.numel());
}

// The inputs and outputs of a call on one device; each begins `begin` elements after an aligned address.
struct Operands {
  Operands(const std::vector<at::Tensor>& sent, const at::Tensor& own, c10::Device device, int64_t begin)
      : array(moved_to(own, device, begin)),
        residual(moved_to(own.to(at::kFloat).mul(0.01), device, begin)),
        mean_residual(moved_to(own.to(at::kFloat).mul(0.02), device, begin)) {
    for (const at::Tensor& message : sent) messages.push_back(moved_to(message, device, begin));
    written = moved_to(at::zeros_like(sent[0]), device, begin);
  }

  ArraySlice slice() const { return {array, {0, array.numel()}, nullptr}; }
  ArraySlice with_feedback() const { return {array, {0, array.numel()}, residual.mutable_data_ptr<float>()}; }
  RankMessages ranks() const {
    RankMessages pointers;
    for (const at::Tensor& message : messages) pointers.push_back(message.const_data_ptr<uint8_t>());
    pointers[kHostileOwnRank] = nullptr;
    return pointers;
  }

  at::Tensor array;
  at::Tensor residual;
  at::Tensor mean_residual;
  at::Tensor written;
  std::vector<at::Tensor> messages;
};

class CudaHostileSlices : public ::testing::TestWithParam<WireFormat> {
 protected:
  void SetUp() override { NARROWCAST_SKIP_WITHOUT(c10::DeviceType::CUDA); }

  // Each rank has the same numbers in a different order.
  std::vector<at::Tensor> messages_of(const at::Tensor& x) const {
    std::vector<at::Tensor> messages;
    for (int64_t rank = 0; rank < kHostileRanks; ++rank) messages.push_back(encode(at::roll(x, 5 * rank), format_));
    return messages;
  }

  // Calls both functions on both devices and compares all outputs.
  void expect_as_on_the_cpu(const std::vector<at::Tensor>& messages, const at::Tensor& own, int64_t begin) const {
    const Operands cpu(messages, own, at::kCPU, begin);
    const Operands gpu(messages, own, at::kCUDA, begin);
    for (const Operands* side : {&cpu, &gpu}) {
      make_wire_codec(format_, side->array.device().type())
          ->average_and_encode(test::kStochastic, side->ranks(), side->with_feedback(),
                               side->mean_residual.mutable_data_ptr<float>(),
                               side->written.mutable_data_ptr<uint8_t>());
      make_wire_codec(format_, side->array.device().type())->average(side->ranks(), side->slice());
    }
    EXPECT_TRUE(same_bits(gpu.array.cpu(), cpu.array));
    EXPECT_TRUE(same_bits(gpu.residual.cpu(), cpu.residual));
    EXPECT_TRUE(same_bits(gpu.mean_residual.cpu(), cpu.mean_residual));
    // Except for the bits of NaN.
    EXPECT_TRUE(same_bits(decode(gpu.written.cpu(), format_, own.numel()), decode(cpu.written, format_, own.numel())));
  }

  const WireFormat format_ = GetParam();
};

// NaN, Inf, subnormals, zeros of both signs, the greatest numbers.
TEST_P(CudaHostileSlices, AreAveragedAsOnTheCpu) {
  for (const int64_t numel : {33, 1000}) {
    for (const auto& [name, numbers] : test::all_wire_inputs(numel)) {
      for (const at::ScalarType dtype : {at::kFloat, at::kDouble, at::kBFloat16, at::kHalf}) {
        SCOPED_TRACE(::testing::Message() << name << ", " << numel << " of type " << dtype);
        const at::Tensor x = at::tensor(numbers);
        expect_as_on_the_cpu(messages_of(x), at::roll(x, 3).to(dtype), 0);
      }
    }
  }
}

// Arrays, messages and residuals that do not begin at an address for vector loads.
TEST_P(CudaHostileSlices, AreAveragedAtAnyAddress) {
  at::manual_seed(1);
  for (const int64_t begin : {1, 2, 3, 5, 8}) {
    for (const at::ScalarType dtype : {at::kFloat, at::kDouble, at::kBFloat16, at::kHalf}) {
      SCOPED_TRACE(::testing::Message() << begin << " elements behind, type " << dtype);
      const at::Tensor x = at::randn({70'001});
      expect_as_on_the_cpu(messages_of(x), at::roll(x, 3).to(dtype), begin);
    }
  }
}

// Messages that no encoder writes.
TEST_P(CudaHostileSlices, AreAveragedFromAnyBytes) {
  at::manual_seed(2);
  for (int round = 0; round < 8; ++round) {
    std::vector<at::Tensor> messages;
    for (int64_t rank = 0; rank < kHostileRanks; ++rank) {
      messages.push_back(at::randint(256, {encoded_size(4097, format_)}, at::kByte));
    }
    expect_as_on_the_cpu(messages, at::randn({4097}), 0);
  }
}

INSTANTIATE_TEST_SUITE_P(All, CudaHostileSlices, ::testing::ValuesIn(kWireFormats),
                         [](const auto& info) { return std::string(codec::wire::name_of(info.param)); });

// More elements than 32 bits can count. The result for all of them must equal the results for the chunks.
constexpr int64_t kBillions = (int64_t{1} << 31) + 5;
constexpr int64_t kBillionsChunk = int64_t{1} << 28;
constexpr WireFormat kBillionsFormat = WireFormat::kInt8B128;

uint8_t* message_at(const at::Tensor& message, int64_t begin) {
  return message.mutable_data_ptr<uint8_t>() + encoded_size(begin, kBillionsFormat);
}

struct Billions {
  at::Tensor x = at::empty({kBillions}, at::device(at::kCUDA).dtype(at::kBFloat16));
  at::Tensor mean = at::empty_like(x);
  at::Tensor decoded = at::empty_like(x);
  at::Tensor message = at::empty({encoded_size(kBillions, kBillionsFormat)}, at::device(at::kCUDA).dtype(at::kByte));
  at::Tensor mean_message = at::empty_like(message);

  void compute() const {
    for (int64_t begin = 0; begin < kBillions; begin += kBillionsChunk) chunk(x, begin).normal_();
    mean.copy_(x);
    const ArraySlice whole{mean, {0, kBillions}, nullptr};
    make_wire_codec(kBillionsFormat, at::kCUDA)->encode({}, whole, message_at(message, 0));
    make_wire_codec(kBillionsFormat, at::kCUDA)
        ->average_and_encode({}, {message_at(message, 0), nullptr}, whole, nullptr, message_at(mean_message, 0));
    make_wire_codec(kBillionsFormat, at::kCUDA)->average({message_at(message, 0), nullptr}, whole);
    make_wire_codec(kBillionsFormat, at::kCUDA)->decode(message_at(message, 0), {decoded, {0, kBillions}, nullptr});
  }

  static at::Tensor chunk(const at::Tensor& all, int64_t begin) {
    return all.narrow(0, begin, std::min(kBillionsChunk, kBillions - begin));
  }

  void expect_chunk(int64_t begin) const {
    const at::Tensor part = chunk(x, begin).clone();
    const ArraySlice slice{part, {0, part.numel()}, nullptr};
    const at::Tensor bytes = at::empty({encoded_size(part.numel(), kBillionsFormat)}, message.options());
    const auto same_bytes = [&](const at::Tensor& all) {
      return at::equal(bytes, all.narrow(0, encoded_size(begin, kBillionsFormat), bytes.numel()));
    };
    make_wire_codec(kBillionsFormat, at::kCUDA)->encode({}, slice, bytes.mutable_data_ptr<uint8_t>());
    EXPECT_TRUE(same_bytes(message));
    const RankMessages ranks{message_at(message, begin), nullptr};
    make_wire_codec(kBillionsFormat, at::kCUDA)
        ->average_and_encode({}, ranks, slice, nullptr, bytes.mutable_data_ptr<uint8_t>());
    EXPECT_TRUE(same_bytes(mean_message));
    make_wire_codec(kBillionsFormat, at::kCUDA)->average(ranks, slice);
    EXPECT_TRUE(at::equal(part, chunk(mean, begin)));
    make_wire_codec(kBillionsFormat, at::kCUDA)->decode(message_at(message, begin), slice);
    EXPECT_TRUE(at::equal(part, chunk(decoded, begin)));
  }
};

TEST(CudaBillions, OfElementsAreEncodedAveragedAndDecoded) {
  NARROWCAST_SKIP_WITHOUT(c10::DeviceType::CUDA);
  try {
    const Billions all;
    all.compute();
    for (int64_t begin = 0; begin < kBillions; begin += kBillionsChunk) {
      SCOPED_TRACE(begin);
      all.expect_chunk(begin);
    }
  } catch (const c10::OutOfMemoryError&) {
    NARROWCAST_NEEDS_GPU("2^31 elements take 20 GiB of a GPU's memory, which this one has not free");
  }
}

}  // namespace
}  // namespace narrowcast::collectives

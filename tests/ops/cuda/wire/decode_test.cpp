// The decoding kernels' floats, against the plain codec.
#include <c10/util/BFloat16.h>
#include <c10/util/Half.h>
#include <gtest/gtest.h>

#include <string>

#include "tests/ops/cuda/wire/kernels_on_host.h"
#include "tests/ops/cuda/wire/placed_array.h"
#include "tests/ops/wire_format/wire_inputs.h"

namespace narrowcast::cuda_on_host {
namespace {

using test::Bytes;
using test::Floats;
using test::same_numbers;

class CudaWireDecode : public ::testing::TestWithParam<WireFormat> {
 protected:
  const WireFormat format_ = GetParam();

  template <class T = float>
  std::vector<T> decode(const Bytes& message, int64_t n, Turns turns, int64_t message_shift = 0,
                        FloatType type = FloatType::kFloat32) {
    test::PlacedArray<uint8_t> placed(message, message_shift);
    test::PlacedArray<T> out(n, message_shift % 4 * static_cast<int64_t>(sizeof(T)));
    wire_decode(format_, {.message = placed.data(), .n = n, .type = type, .out = out.data()}, turns);
    return out.values();
  }

  template <class T>
  void expect_decodes_and_rounds(FloatType type, const Bytes& message, int64_t n) {
    const Floats expected = test::plain_decode(format_, message, n);
    const std::vector<T> rounded(expected.begin(), expected.end());
    const std::vector<T> decoded = decode<T>(message, n, Turns::kForward, 0, type);
    EXPECT_TRUE(same_numbers(Floats(decoded.begin(), decoded.end()), Floats(rounded.begin(), rounded.end())));
  }
};

TEST_P(CudaWireDecode, GivesTheFloatsOfThePlainCodec) {
  int64_t calls = 0;
  for (const int64_t size : test::kTileSizes) {
    for (const auto& [name, x] : test::wire_inputs(size)) {
      SCOPED_TRACE(::testing::Message() << name << " of size " << size);
      const Bytes message = test::plain_encode(format_, x, test::kNearest);
      const Turns turns = ++calls % 2 == 0 ? Turns::kForward : Turns::kBackward;
      ASSERT_TRUE(same_numbers(decode(message, size, turns), test::plain_decode(format_, message, size)));
    }
  }
}

// Bytes that no encoder wrote, as a damaged message holds them, at any address.
TEST_P(CudaWireDecode, TakesAnyBytesAtAnyAddress) {
  for (const int64_t size : {5, 1024, 3001}) {
    for (int64_t shift = 0; shift < 16; ++shift) {
      SCOPED_TRACE(::testing::Message() << size << " elements " << shift << " bytes behind a boundary");
      at::manual_seed(shift);
      const at::Tensor random = at::randint(0, 256, {test::size_of(format_, size)}, at::kByte);
      const Bytes message(random.const_data_ptr<uint8_t>(), random.const_data_ptr<uint8_t>() + random.numel());
      const Floats expected = test::plain_decode(format_, message, size);
      for (const Turns turns : {Turns::kForward, Turns::kBackward}) {
        ASSERT_TRUE(same_numbers(decode(message, size, turns, shift), expected));
      }
    }
  }
}

TEST_P(CudaWireDecode, RoundsToTheOtherElementTypes) {
  for (const int64_t size : {257, 2048}) {
    for (const auto& [name, x] : test::wire_inputs(size)) {
      SCOPED_TRACE(name);
      const Bytes message = test::plain_encode(format_, x, test::kNearest);
      expect_decodes_and_rounds<double>(FloatType::kFloat64, message, size);
      expect_decodes_and_rounds<c10::BFloat16>(FloatType::kBfloat16, message, size);
      expect_decodes_and_rounds<c10::Half>(FloatType::kFloat16, message, size);
    }
  }
}

INSTANTIATE_TEST_SUITE_P(All, CudaWireDecode, ::testing::ValuesIn(kWireFormats),
                         [](const auto& info) { return std::string(codec::wire::name_of(info.param)); });

}  // namespace
}  // namespace narrowcast::cuda_on_host

// Slices of CUDA tensors, compared with the CPU. Needs a GPU.
#include "ops/collectives/all_reduce/codec/wire_codec.h"

#include <ATen/ATen.h>
#include <gtest/gtest.h>

#include <string>
#include <vector>

#include <narrowcast/wire_format.h>
#include "tests/ops/wire_format/wire_inputs.h"
#include "tests/support/devices.h"

namespace narrowcast::collectives {
namespace {

using test::same_bits;

const std::vector<at::ScalarType> kDtypes{at::kFloat, at::kDouble, at::kBFloat16, at::kHalf};

// The same call with tensors on the CPU and on a GPU. The ranks' messages are encoded random numbers.
struct Side {
  c10::Device device;
  at::Tensor array;  // The slice is all but the first 1024 elements.
  at::Tensor residual;
  at::Tensor mean_residual;
  at::Tensor messages;  // [ranks, bytes]
  at::Tensor message;   // The output.

  ArraySlice slice(bool feedback) const {
    return {array, {1024, array.numel() - 1024}, feedback ? residual.mutable_data_ptr<float>() : nullptr};
  }
  RankMessages ranks(int64_t own) const {
    RankMessages result;
    for (int64_t rank = 0; rank < messages.size(0); ++rank) {
      result.push_back(messages.const_data_ptr<uint8_t>() + rank * messages.size(1));
    }
    if (own >= 0) result[static_cast<size_t>(own)] = nullptr;
    return result;
  }
  uint8_t* out() const { return message.mutable_data_ptr<uint8_t>(); }
};

class CudaSliceCodec : public ::testing::TestWithParam<WireFormat> {
 protected:
  void SetUp() override { NARROWCAST_SKIP_WITHOUT(c10::DeviceType::CUDA); }

  Side side(c10::Device device, int64_t n, at::ScalarType dtype, int64_t ranks) const {
    at::manual_seed(1);
    const auto random = [&] { return at::randn({n}); };
    Side result{device, at::randn({n + 1024}).to(dtype).to(device), random().to(device), random().to(device), {}, {}};
    std::vector<at::Tensor> messages;
    for (int64_t rank = 0; rank < ranks; ++rank) messages.push_back(encode(random(), format_));
    result.messages = at::stack(messages).to(device);
    result.message = at::zeros({encoded_size(n, format_)}, at::device(device).dtype(at::kByte));
    return result;
  }

  template <class Body>
  void for_each_case(const Body& body) {
    for (const int64_t n : {1, 1000, 70001}) {
      for (const at::ScalarType dtype : kDtypes) {
        for (const int64_t ranks : {1, 2, 3, 5, 16}) {
          SCOPED_TRACE(::testing::Message() << n << " " << dtype << " of " << ranks << " ranks");
          const Side cpu = side(at::kCPU, n, dtype, ranks);
          const Side gpu = side(at::kCUDA, n, dtype, ranks);
          body(cpu, gpu, ranks);
          EXPECT_TRUE(same_bits(gpu.array.cpu(), cpu.array));
          EXPECT_TRUE(same_bits(gpu.message.cpu(), cpu.message));
          EXPECT_TRUE(same_bits(gpu.residual.cpu(), cpu.residual));
          EXPECT_TRUE(same_bits(gpu.mean_residual.cpu(), cpu.mean_residual));
        }
      }
    }
  }

  const WireFormat format_ = GetParam();
};

TEST_P(CudaSliceCodec, EncodesAndDecodesAsTheCpu) {
  for (const bool feedback : {false, true}) {
    for_each_case([&](const Side& cpu, const Side& gpu, int64_t) {
      const codec::wire::Rounding rounding = feedback ? test::kNearest : test::kStochastic;
      for (const Side* side : {&cpu, &gpu}) {
        make_wire_codec(format_, side->device.type())->encode(rounding, side->slice(feedback), side->out());
        make_wire_codec(format_, side->device.type())->decode(side->out(), side->slice(false));
      }
    });
  }
}

TEST_P(CudaSliceCodec, AveragesAsTheCpu) {
  for_each_case([&](const Side& cpu, const Side& gpu, int64_t ranks) {
    for (const Side* side : {&cpu, &gpu})
      make_wire_codec(format_, side->device.type())->average(side->ranks(ranks - 1), side->slice(false));
  });
}

TEST_P(CudaSliceCodec, EncodesAveragesAsTheCpu) {
  for (const bool feedback : {false, true}) {
    for_each_case([&](const Side& cpu, const Side& gpu, int64_t ranks) {
      const codec::wire::Rounding rounding = test::kStochastic;
      for (const Side* side : {&cpu, &gpu}) {
        float* const mean_residual = feedback ? side->mean_residual.mutable_data_ptr<float>() : nullptr;
        make_wire_codec(format_, side->device.type())
            ->average_and_encode(rounding, side->ranks(ranks / 2), side->slice(feedback), mean_residual, side->out());
      }
    });
  }
}

INSTANTIATE_TEST_SUITE_P(All, CudaSliceCodec, ::testing::ValuesIn(kWireFormats),
                         [](const auto& info) { return std::string(codec::wire::name_of(info.param)); });

}  // namespace
}  // namespace narrowcast::collectives

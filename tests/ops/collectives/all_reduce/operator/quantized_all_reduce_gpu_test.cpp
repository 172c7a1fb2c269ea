// quantized_all_reduce of CUDA tensors over NCCL. Needs a GPU, which the ranks share.
#include <narrowcast/quantized_all_reduce.h>

#include <ATen/ATen.h>
#include <c10/core/StreamGuard.h>
#include <c10/core/impl/VirtualGuardImpl.h>
#include <c10/util/Exception.h>
#include <gtest/gtest.h>

#include <string>
#include <vector>

#include "tests/ops/affine_uint8/reference.h"
#include "tests/ops/collectives/all_reduce/algorithms/reference_all_reduce.h"
#include "tests/ops/collectives/auto_quantize/calls.h"
#include "tests/ops/wire_format/wire_inputs.h"
#include "tests/support/busy_gpu.h"
#include "tests/support/error_message.h"
#include "tests/support/nccl/nccl_ranks.h"

namespace narrowcast {
namespace {

using test::same_bits;
using testing::error_message;
using Group = c10::intrusive_ptr<c10d::ProcessGroup>;

// The inputs by rank, on the CPU, the same in every process.
std::vector<at::Tensor> inputs_of(const Group& group, at::ScalarType dtype = at::kFloat, int64_t rows = 500) {
  at::manual_seed(3);
  std::vector<at::Tensor> inputs;
  for (int64_t rank = 0; rank < group->getSize(); ++rank) inputs.push_back(at::randn({rows, 600}).to(dtype));
  return inputs;
}

at::Tensor mean_of(WireFormat format, const std::vector<at::Tensor>& inputs) {
  std::vector<at::Tensor> flat;
  for (const at::Tensor& input : inputs) flat.push_back(input.reshape({-1}));
  return collectives::mean_by_route({format}, flat, {}).view(inputs[0].sizes());
}

void expect_mean_in_every_way(WireFormat format, const Group& group) {
  const test::RegisteredGroup registered(group);
  const auto inputs = inputs_of(group);
  const at::Tensor expected = mean_of(format, inputs);
  const at::Tensor x = inputs[static_cast<size_t>(group->getRank())].cuda();
  const at::Tensor mean = quantized_all_reduce(x, format, group);
  EXPECT_TRUE(mean.is_cuda());
  EXPECT_TRUE(same_bits(mean.cpu(), expected));
  EXPECT_TRUE(same_bits(x.cpu(), inputs[static_cast<size_t>(group->getRank())])) << "x is left alone";
  const at::Tensor y = x.clone();
  test::call_operator("quantized_all_reduce_", y, std::string(to_string(format)), registered.name());
  EXPECT_TRUE(same_bits(y.cpu(), expected));
  quantized_all_reduce_(x, format, group);
  EXPECT_TRUE(same_bits(x.cpu(), expected));
}

// In one hop, and with three ranks in two hops.
class CudaQuantizedAllReduce : public ::testing::TestWithParam<int64_t> {};
INSTANTIATE_TEST_SUITE_P(Worlds, CudaQuantizedAllReduce, ::testing::Values(2, 3));

TEST_P(CudaQuantizedAllReduce, AveragesEveryFormatInEveryWay) {
  testing::run_nccl_ranks(GetParam(), [](int64_t, const Group& group) {
    for (const WireFormat format : kWireFormats) {
      SCOPED_TRACE(to_string(format));
      expect_mean_in_every_way(format, group);
    }
  });
}

// Messages of 13.4 MB, 7.4 MB and 8.3 MB: three chunks on two streams, one chunk, and as many as the CPU sends. The
// inputs are filled behind long kernels, for which the second stream has to wait, and the results are read at once.
TEST_P(CudaQuantizedAllReduce, AveragesLargeArraysInChunks) {
  testing::run_nccl_ranks(GetParam(), [](int64_t rank, const Group& group) {
    const auto inputs = inputs_of(group, at::kFloat, 22'001);
    const at::Tensor input = inputs[static_cast<size_t>(rank)].cuda();
    for (const WireFormat format : {WireFormat::kInt8B128, WireFormat::kInt4B32, WireFormat::kVar5}) {
      const at::Tensor x = at::full_like(input, 99);
      test::keep_gpu_busy();
      x.copy_(input);
      quantized_all_reduce_(x, format, group);
      EXPECT_TRUE(same_bits(x.cpu(), mean_of(format, inputs))) << to_string(format);
    }
  });
}

// Recording follows a first call of the same size and format, for which the host waits. Messages have one chunk, or
// three on two streams.
TEST_P(CudaQuantizedAllReduce, IsRecordedInACudaGraph) {
  testing::run_nccl_ranks(GetParam(), [](int64_t rank, const Group& group) {
    const c10::impl::VirtualGuardImpl implementation(at::kCUDA);
    const c10::StreamGuard guard(implementation.getStreamFromGlobalPool(implementation.getDevice()));
    for (const int64_t rows : {500, 22'001}) {
      for (const WireFormat format : {WireFormat::kInt8B128, WireFormat::kVar5}) {
        SCOPED_TRACE(::testing::Message() << rows << " rows in " << to_string(format));
        auto inputs = inputs_of(group, at::kFloat, rows);
        const at::Tensor x = at::ones_like(inputs[0], at::kCUDA);
        quantized_all_reduce_(x, format, group);
        const auto replay = testing::recorded_as_graph([&] { quantized_all_reduce_(x, format, group); });
        for (int time = 0; time < 2; ++time) {
          x.copy_(inputs[static_cast<size_t>(rank)]);
          replay();
          EXPECT_TRUE(same_bits(x.cpu(), mean_of(format, inputs))) << "replay " << time;
          for (at::Tensor& input : inputs) input = input.flip(0);
        }
      }
    }
  });
}

TEST_P(CudaQuantizedAllReduce, TakesAnyLayoutAndDtype) {
  testing::run_nccl_ranks(GetParam(), [](int64_t rank, const Group& group) {
    for (const auto dtype : {at::kFloat, at::kDouble, at::kHalf, at::kBFloat16}) {
      const auto inputs = inputs_of(group, dtype);
      const at::Tensor expected = mean_of(WireFormat::kInt8B128, inputs);
      // Every second column of memory that begins at an unaligned place.
      const at::Tensor memory = at::zeros({1201 * 500}, at::device(at::kCUDA).dtype(dtype));
      const at::Tensor x = memory.narrow(0, 1, 1200 * 500).view({500, 1200}).slice(1, 0, 1200, 2);
      x.copy_(inputs[static_cast<size_t>(rank)]);
      quantized_all_reduce_(x, WireFormat::kInt8B128, group);
      EXPECT_TRUE(same_bits(x.cpu(), expected)) << dtype;
      EXPECT_EQ(memory.count_nonzero().item<int64_t>(), x.count_nonzero().item<int64_t>()) << "beside x, " << dtype;
    }
  });
}

// The input is filled behind long kernels on the caller's stream, and the result is read there behind other kernels,
// while other allocations reuse memory.
TEST_P(CudaQuantizedAllReduce, IsInTheOrderOfTheCallersStream) {
  testing::run_nccl_ranks(GetParam(), [](int64_t rank, const Group& group) {
    const auto inputs = inputs_of(group);
    const at::Tensor expected = mean_of(WireFormat::kInt8B128, inputs);
    const at::Tensor input = inputs[static_cast<size_t>(rank)].cuda();
    const c10::impl::VirtualGuardImpl implementation(at::kCUDA);
    implementation.synchronizeDevice(implementation.getDevice().index());
    const c10::StreamGuard guard(implementation.getStreamFromGlobalPool(implementation.getDevice()));
    for (int call = 0; call < 3; ++call) {
      const at::Tensor x = at::zeros_like(input);
      test::keep_gpu_busy();
      x.copy_(input);
      at::Tensor mean = quantized_all_reduce(x, WireFormat::kInt8B128, group);
      x.fill_(99);
      test::overwrite_free_memory(x);
      test::keep_gpu_busy();
      EXPECT_TRUE(same_bits(mean.cpu(), expected)) << "call " << call;
    }
  });
}

TEST_P(CudaQuantizedAllReduce, RanksThatDisagreeAreToldTheSameAndGoOn) {
  testing::run_nccl_ranks(GetParam(), [](int64_t rank, const Group& group) {
    const auto expect_error = [&](const std::string& expected, const at::Tensor& x, WireFormat format) {
      EXPECT_EQ(error_message<c10::ValueError>([&] { quantized_all_reduce_(x, format, group); }),
                "quantized_all_reduce: " + expected);
      EXPECT_TRUE(x.eq(1).all().item<bool>()) << "nothing is written";
      expect_mean_in_every_way(WireFormat::kInt4B32, group);
    };
    const at::Tensor ones = at::ones({1000}, at::kCUDA);
    expect_error("numel of x differs between ranks: rank 0 has 1000, rank 1 has 999",
                 rank == 1 ? ones.narrow(0, 1, 999) : ones, WireFormat::kFp32);
    expect_error("format differs between ranks: rank 0 has fp32, rank 1 has int8_b32", ones,
                 rank == 1 ? WireFormat::kInt8B32 : WireFormat::kFp32);
  });
}

TEST_P(CudaQuantizedAllReduce, RefusesTwoLevels) {
  testing::run_nccl_ranks(GetParam(), [](int64_t, const Group& group) {
    const at::Tensor x = at::ones({1000}, at::kCUDA);
    EXPECT_EQ(error_message<c10::ValueError>([&] { quantized_all_reduce_(x, WireFormat::kFp32, group, Levels::kTwo); }),
              "quantized_all_reduce on rank 0: levels: two is impossible, because x is on a GPU, where operators have "
              "one level");
    quantized_all_reduce_(x, WireFormat::kFp32, group, Levels::kOne);
    EXPECT_TRUE(x.eq(1).all().item<bool>());
  });
}

}  // namespace
}  // namespace narrowcast

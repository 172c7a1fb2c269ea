// quantized_reduce_scatter_ of CUDA tensors over NCCL. Needs a GPU, which the ranks share.
#include <narrowcast/quantized_reduce_scatter.h>

#include <ATen/ATen.h>
#include <c10/core/StreamGuard.h>
#include <c10/core/impl/VirtualGuardImpl.h>
#include <c10/util/Exception.h>
#include <gtest/gtest.h>

#include <string>

#include "tests/ops/affine_uint8/reference.h"
#include "tests/ops/collectives/reduce_scatter/plain_reduce_scatter.h"
#include "tests/support/busy_gpu.h"
#include "tests/support/error_message.h"
#include "tests/support/nccl/nccl_ranks.h"

namespace narrowcast {
namespace {

using test::PlainReduceScatter;
using test::reduce_scatter_inputs;
using test::same_bits;
using testing::error_message;
using Group = c10::intrusive_ptr<c10d::ProcessGroup>;

class CudaQuantizedReduceScatter : public ::testing::TestWithParam<int64_t> {};
INSTANTIATE_TEST_SUITE_P(Worlds, CudaQuantizedReduceScatter, ::testing::Values(2, 3));

// Shards of whole grains are encoded at once, others one by one.
TEST_P(CudaQuantizedReduceScatter, HasTheBitsOfTheCpu) {
  testing::run_nccl_ranks(GetParam(), [](int64_t rank, const Group& group) {
    for (const WireFormat format : kWireFormats) {
      for (const Reduction reduction : test::kReductions) {
        for (const int64_t numel : {777, 300 * 1024}) {
          for (const at::ScalarType dtype : {at::kFloat, at::kDouble, at::kHalf, at::kBFloat16}) {
            SCOPED_TRACE(::testing::Message() << format << ", " << reduction << " of " << numel << " " << dtype);
            const auto inputs = reduce_scatter_inputs(group->getSize(), numel, dtype);
            const at::Tensor input = inputs[static_cast<size_t>(rank)].cuda();
            const at::Tensor shard = at::full({numel}, 99, input.options());
            quantized_reduce_scatter_(shard, input, format, reduction, group);
            EXPECT_TRUE(same_bits(shard.cpu(), PlainReduceScatter{format, reduction, dtype}.shard_of(rank, inputs)));
          }
        }
      }
    }
  });
}

// The input is filled behind long kernels on the caller's stream, and changes after the call, while other allocations
// reuse memory.
TEST_P(CudaQuantizedReduceScatter, IsInTheOrderOfTheCallersStream) {
  testing::run_nccl_ranks(GetParam(), [](int64_t rank, const Group& group) {
    const auto inputs = reduce_scatter_inputs(group->getSize(), 200'000);
    const at::Tensor filled = inputs[static_cast<size_t>(rank)].cuda();
    const c10::impl::VirtualGuardImpl implementation(at::kCUDA);
    implementation.synchronizeDevice(implementation.getDevice().index());
    const c10::StreamGuard guard(implementation.getStreamFromGlobalPool(implementation.getDevice()));
    for (int call = 0; call < 3; ++call) {
      const at::Tensor input = at::zeros_like(filled);
      const at::Tensor shard = at::zeros({200'000}, at::kCUDA);
      test::keep_gpu_busy();
      input.copy_(filled);
      quantized_reduce_scatter_(shard, input, WireFormat::kInt8B128, Reduction::kMean, group);
      input.fill_(99);
      test::overwrite_free_memory(input);
      EXPECT_TRUE(same_bits(shard.cpu(), PlainReduceScatter{WireFormat::kInt8B128}.shard_of(rank, inputs)))
          << "call " << call;
    }
  });
}

// Recording follows a first call of the same kind, for which the host waits.
TEST_P(CudaQuantizedReduceScatter, IsRecordedInACudaGraph) {
  testing::run_nccl_ranks(GetParam(), [](int64_t rank, const Group& group) {
    const c10::impl::VirtualGuardImpl implementation(at::kCUDA);
    const c10::StreamGuard guard(implementation.getStreamFromGlobalPool(implementation.getDevice()));
    for (const WireFormat format : {WireFormat::kInt8B128, WireFormat::kVar5}) {
      auto inputs = reduce_scatter_inputs(group->getSize(), 5000);
      const at::Tensor input = at::ones_like(inputs[0], at::kCUDA);
      const at::Tensor shard = at::zeros({5000}, at::kCUDA);
      const auto call = [&] { quantized_reduce_scatter_(shard, input, format, Reduction::kMean, group); };
      call();
      const auto replay = testing::recorded_as_graph(call);
      for (int time = 0; time < 2; ++time) {
        input.copy_(inputs[static_cast<size_t>(rank)]);
        replay();
        EXPECT_TRUE(same_bits(shard.cpu(), PlainReduceScatter{format}.shard_of(rank, inputs))) << "replay " << time;
        for (at::Tensor& each : inputs) each = each.flip(1);
      }
    }
  });
}

TEST_P(CudaQuantizedReduceScatter, RanksThatDisagreeThrowTheSame) {
  testing::run_nccl_ranks(GetParam(), [](int64_t rank, const Group& group) {
    const at::Tensor input = at::ones({group->getSize() * 100}, at::kCUDA);
    const at::Tensor shard = at::zeros({100}, at::kCUDA);
    const auto call = [&](WireFormat format) {
      quantized_reduce_scatter_(shard, input, format, Reduction::kMean, group);
    };
    EXPECT_EQ(error_message<c10::ValueError>([&] { call(rank == 1 ? WireFormat::kInt8B32 : WireFormat::kFp32); }),
              "quantized_reduce_scatter: format differs between ranks: rank 0 has fp32, rank 1 has int8_b32");
    EXPECT_TRUE(shard.eq(0).all().item<bool>()) << "nothing is written";
    call(WireFormat::kFp32);
    EXPECT_TRUE(shard.eq(1).all().item<bool>());
  });
}

}  // namespace
}  // namespace narrowcast

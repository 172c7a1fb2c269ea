// Here on the CPU, with Gloo's all-to-all; the GPU test is quantized_reduce_scatter_gpu_test.cpp.
#include "ops/collectives/reduce_scatter/stream_reduce_scatter.h"

#include <ATen/ATen.h>
#include <gtest/gtest.h>

#include <narrowcast/quantized_reduce_scatter.h>
#include "tests/ops/affine_uint8/reference.h"
#include "tests/ops/collectives/reduce_scatter/plain_reduce_scatter.h"
#include "tests/support/ranks.h"

namespace narrowcast::collectives {
namespace {

using Group = c10::intrusive_ptr<c10d::ProcessGroup>;

class StreamReduceScatter : public ::testing::TestWithParam<int64_t> {};
INSTANTIATE_TEST_SUITE_P(Worlds, StreamReduceScatter, ::testing::Values(2, 3, 5));

// Shards of whole grains are encoded at once, others one by one.
TEST_P(StreamReduceScatter, HasTheBitsOfTensorOperations) {
  for (const int64_t numel : {0, 1, 1000, 2048}) {
    for (const at::ScalarType dtype : {at::kFloat, at::kBFloat16}) {
      const auto inputs = test::reduce_scatter_inputs(GetParam(), numel, dtype);
      testing::run_ranks(GetParam(), [&](int64_t rank, const Group& group) {
        for (const WireFormat format : kWireFormats) {
          for (const Reduction reduction : test::kReductions) {
            SCOPED_TRACE(::testing::Message() << format << ", " << reduction << " of " << numel << " " << dtype);
            const at::Tensor shard = at::full({numel}, 99, dtype);
            enqueue_reduce_scatter({shard, inputs[rank].view({-1}), format, reduction}, group);
            EXPECT_TRUE(
                test::same_bits(shard, test::PlainReduceScatter{format, reduction, dtype}.shard_of(rank, inputs)));
          }
        }
      });
    }
  }
}

}  // namespace
}  // namespace narrowcast::collectives

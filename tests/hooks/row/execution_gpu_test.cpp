// HookStream on a GPU, with long kernels at places where an event could be missing.
#include "hooks/row/execution.h"

#include <ATen/ATen.h>
#include <c10/core/impl/VirtualGuardImpl.h>
#include <gtest/gtest.h>

#include <stdexcept>
#include <vector>

#include "tests/support/busy_gpu.h"
#include "tests/support/devices.h"

namespace narrowcast::hooks {
namespace {

constexpr int64_t kStreamNumel = 1 << 20;

c10::Stream current_stream() {
  const c10::impl::VirtualGuardImpl implementation(at::kCUDA);
  return implementation.getStream(implementation.getDevice());
}

at::Tensor filled(float value) { return at::full({kStreamNumel}, value, at::kCUDA); }

class CudaHookStream : public ::testing::Test {
 protected:
  void SetUp() override { NARROWCAST_SKIP_WITHOUT(c10::DeviceType::CUDA); }

  HookStream stream_;
};

TEST_F(CudaHookStream, IsTheSameForEveryBucketAndNotTheCallers) {
  const at::Tensor bucket = filled(1);
  std::vector<c10::Stream> seen;
  for (int i = 0; i < 2; ++i) {
    const auto future = stream_.run(bucket, [&] {
      seen.push_back(current_stream());
      return bucket;
    });
    EXPECT_TRUE(future->completed());
  }
  EXPECT_EQ(seen[0], seen[1]);
  EXPECT_NE(seen[0], current_stream());
}

TEST_F(CudaHookStream, BeginsWhenTheBucketIsFilled) {
  const at::Tensor bucket = filled(0);
  test::keep_gpu_busy();
  bucket.fill_(3);
  const auto future = stream_.run(bucket, [&] { return bucket.mul(2); });
  future->wait();
  EXPECT_TRUE(future->value().toTensor().eq(6).all().item<bool>());
}

TEST_F(CudaHookStream, WhoWaitsSeesTheResult) {
  const at::Tensor bucket = filled(0);
  const auto future = stream_.run(bucket, [&] {
    test::keep_gpu_busy();
    return bucket.fill_(7);
  });
  future->wait();
  const at::Tensor seen = bucket.clone();  // On this stream.
  EXPECT_TRUE(seen.eq(7).all().item<bool>());
}

TEST_F(CudaHookStream, TheBucketsMemoryIsNotGivenAwayBefore) {
  at::Tensor bucket = filled(5);
  const auto future = stream_.run(bucket, [&] {
    test::keep_gpu_busy();
    return bucket.clone();
  });
  bucket.reset();
  test::overwrite_free_memory(at::empty({kStreamNumel}));
  future->wait();
  EXPECT_TRUE(future->value().toTensor().eq(5).all().item<bool>());
}

TEST_F(CudaHookStream, AnExceptionLeavesTheCallersStream) {
  const c10::Stream before = current_stream();
  const at::Tensor bucket = filled(1);
  EXPECT_THROW(stream_.run(bucket, []() -> at::Tensor { throw std::logic_error("on purpose"); }), std::logic_error);
  EXPECT_EQ(current_stream(), before);
}

}  // namespace
}  // namespace narrowcast::hooks

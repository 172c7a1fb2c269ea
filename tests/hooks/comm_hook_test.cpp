#include <narrowcast/comm_hook.h>

#include <ATen/ops/ones.h>
#include <gtest/gtest.h>

namespace narrowcast::hooks {
namespace {

class CountingHook final : public CommHook {
 public:
  std::string_view name() const override { return "counting"; }
  c10::intrusive_ptr<c10::ivalue::Future> runHook(c10d::GradBucket& bucket) override {
    count_payload(static_cast<int64_t>(bucket.getBuffer().nbytes()));
    return nullptr;
  }
};

TEST(CommHook, AddsUpItsPayload) {
  CountingHook hook;
  c10d::GradBucket bucket(0, 1, at::ones({3}), {}, {}, {}, {}, std::nullopt);
  hook.runHook(bucket);
  hook.runHook(bucket);
  EXPECT_EQ(hook.payload_bytes_sent(), 24);
}

TEST(CommHook, TakesATensorOrAListOfOne) {
  CountingHook hook;
  const at::Tensor tensor = at::ones({3});
  EXPECT_TRUE(hook.parseHookResult(tensor).is_same(tensor));
  EXPECT_TRUE(hook.parseHookResult(std::vector<at::Tensor>{tensor}).is_same(tensor));
  EXPECT_THROW(hook.parseHookResult(std::vector<at::Tensor>{tensor, tensor}), c10::Error);
  EXPECT_THROW(hook.parseHookResult(1.5), c10::Error);
}

TEST(RingAllReduceBytes, SendsTwiceTheOthersShare) {
  EXPECT_EQ(ring_all_reduce_bytes(1000, 1), 0);
  EXPECT_EQ(ring_all_reduce_bytes(1000, 2), 1000);
  EXPECT_EQ(ring_all_reduce_bytes(1000, 4), 1500);
  EXPECT_EQ(ring_all_reduce_bytes(1000, 3), 1334) << "rounded up";
  EXPECT_EQ(ring_all_reduce_bytes(int64_t{1} << 40, 8), (int64_t{1} << 40) / 4 * 7);
}

}  // namespace
}  // namespace narrowcast::hooks

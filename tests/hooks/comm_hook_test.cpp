#include <narrowcast/comm_hook.h>

#include <ATen/ops/ones.h>
#include <ATen/ops/zeros.h>
#include <gtest/gtest.h>

#include <narrowcast/errors.h>
#include "tests/support/error_message.h"

namespace narrowcast::hooks {
namespace {

using testing::error_message;

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

TEST(HookState, KeepsIntegersWhole) {
  const int64_t large = (int64_t{1} << 62) + 1;
  EXPECT_EQ(int_of({{"count", int_tensor(large)}}, "count"), large);
}

TEST(HookState, NamesWhatIsMissingOrNoInteger) {
  EXPECT_EQ(error_message<CorruptInputError>([] { int_of({}, "count"); }), "the hook's state lacks 'count'");
  EXPECT_EQ(error_message<CorruptInputError>([] {
              int_of({{"count", at::zeros({1})}}, "count");
            }),
            "the hook's state 'count' is no integer");
}

TEST(FormerRanks, OwnIsTheFirstRanksWhereThereIsNone) {
  FormerRanks saved;
  saved.first = {{"count", int_tensor(1)}};
  EXPECT_EQ(int_of(saved.own(), "count"), 1);
  saved.states = {{{"count", int_tensor(2)}}, {{"count", int_tensor(3)}}};
  EXPECT_EQ(int_of(saved.own(), "count"), 2);
}

}  // namespace
}  // namespace narrowcast::hooks

#include <narrowcast/comm_hook.h>

#include <ATen/ops/ones.h>
#include <ATen/ops/zeros.h>
#include <gtest/gtest.h>

#include <optional>
#include <vector>

#include <narrowcast/errors.h>
#include "tests/hooks/all/bucket.h"
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

// Counts 8 n + 3 payload bytes and n message bytes for each bucket of n elements; can be configured to count nothing.
class ExchangingHook final : public CommHook {
 public:
  std::string_view name() const override { return "exchanging"; }
  c10::intrusive_ptr<c10::ivalue::Future> runHook(c10d::GradBucket& bucket) override {
    const int64_t numel = bucket.getBuffer().numel();
    count_exchange(bucket, sends_ ? ExchangedBytes{.payload = 8 * numel + 3, .message = numel} : ExchangedBytes{});
    return nullptr;
  }
  void stop() { sends_ = false; }

 private:
  bool sends_ = true;
};

// Passes its buckets to another hook.
class OuterHook final : public CommHook {
 public:
  explicit OuterHook(CommHook& inner) : inner_(inner) {}
  std::string_view name() const override { return "outer"; }
  c10::intrusive_ptr<c10::ivalue::Future> runHook(c10d::GradBucket& bucket) override {
    return run_inside(inner_, bucket);
  }

 private:
  CommHook& inner_;
};

void run_step(CommHook& hook, const std::vector<int64_t>& sizes) {
  for (size_t index = 0; index < sizes.size(); ++index) {
    auto bucket = make_bucket(at::ones({sizes[index]}), index, sizes.size());
    hook.runHook(bucket);
  }
}

TEST(CommHook, SaysHowMuchSmallerThanFloat32ItsMessagesAre) {
  ExchangingHook hook;
  EXPECT_EQ(hook.compression(), std::nullopt) << "nothing was sent";
  run_step(hook, {3, 5, 7});
  EXPECT_EQ(hook.compression(), 4);
  EXPECT_EQ(hook.payload_bytes_sent(), 8 * 15 + 9);
  hook.stop();
  run_step(hook, {15});
  EXPECT_EQ(hook.compression(), std::nullopt) << "of three buckets one is left, of which nothing is sent";
}

TEST(CommHook, WhoCountsThePayloadAloneSaysNoCompression) {
  CountingHook hook;
  run_step(hook, {3});
  EXPECT_EQ(hook.compression(), std::nullopt);
}

TEST(CommHook, CountsWhatAHookInsideItSends) {
  ExchangingHook inner;
  run_step(inner, {100});
  OuterHook hook(inner);
  run_step(hook, {3, 5});
  EXPECT_EQ(hook.payload_bytes_sent(), 8 * 8 + 6);
  EXPECT_EQ(hook.compression(), 4);
  CountingHook counting;
  OuterHook other(counting);
  run_step(other, {3});
  EXPECT_EQ(other.payload_bytes_sent(), 12);
  EXPECT_EQ(other.compression(), std::nullopt);
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
            "the hook's state 'count' is not an integer");
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

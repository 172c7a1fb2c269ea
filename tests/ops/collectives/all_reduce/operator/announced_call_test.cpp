// State that stays between calls of the quantised all-reduce, and how long it stays.
#include "ops/collectives/all_reduce/operator/announced_call.h"

#include <ATen/ATen.h>
#include <c10/core/Allocator.h>
#include <c10/core/CPUAllocator.h>
#include <gtest/gtest.h>

#include <atomic>
#include <chrono>
#include <cstddef>
#include <future>
#include <memory>
#include <mutex>
#include <string>
#include <thread>
#include <vector>

#include <narrowcast/quantized_all_reduce.h>
#include "tests/support/ranks.h"

namespace narrowcast::collectives {
namespace {

using testing::run_ranks;
using testing::wait_for_ranks;
using Group = c10::intrusive_ptr<c10d::ProcessGroup>;

// Counts what is worth counting: headers and shapes are not.
class CountingAllocator final : public c10::Allocator {
 public:
  c10::DataPtr allocate(size_t bytes) override {
    if (bytes >= kWorthCounting) count_ += 1;
    return c10::GetDefaultCPUAllocator()->allocate(bytes);
  }
  c10::DeleterFnPtr raw_deleter() const override { return c10::GetDefaultCPUAllocator()->raw_deleter(); }
  void copy_data(void* to, const void* from, size_t count) const override { default_copy_data(to, from, count); }
  int64_t count() const { return count_; }

 private:
  static constexpr size_t kWorthCounting = 8 << 10;
  std::atomic<int64_t> count_ = 0;
};

CountingAllocator& counter() {
  static CountingAllocator allocator;  // LibTorch keeps the pointer.
  c10::SetCPUAllocator(&allocator, 1);
  return allocator;
}

// Keeps a rank's engine from taking another job, until it may go on.
class BlockingJob final : public engine::Job {
 public:
  std::string name() const override { return "blocking job"; }
  void start(engine::Transport&) override { was_released_ = go_on.get_future().wait_for(kPatience) == kReady; }
  at::Tensor finish(engine::Transport&) override {
    EXPECT_TRUE(was_released_);
    return {};
  }

  std::promise<void> go_on;

 private:
  static constexpr std::chrono::seconds kPatience{5};
  static constexpr std::future_status kReady = std::future_status::ready;
  bool was_released_ = false;
};

// Here on the CPU, where the stream's collectives are waited for, but do not go over the engine.
TEST(OnAStream, TheHostWaitsForTheFirstCallOfAKindAlone) {
  run_ranks(2, [](int64_t rank, const Group& group) {
    const auto averaged = [&](int64_t numel) {
      const at::Tensor x = at::full({numel}, rank, at::kFloat);
      average_on_stream(x, WireFormat::kFp32, group);
      return x.eq(0.5).all().item<bool>();
    };
    EXPECT_TRUE(averaged(5'000));
    const auto engine = engine::Engine::for_group(group);
    const auto block = std::make_shared<BlockingJob>();
    const auto future = engine->submit(block);
    EXPECT_TRUE(averaged(5'000));
    EXPECT_TRUE(averaged(5'000));
    block->go_on.set_value();
    future->waitAndThrow();
  });
}

TEST(OnAStream, RanksCompareEveryKindOfCallBeforeTheyAgree) {
  run_ranks(2, [](int64_t rank, const Group& group) {
    const auto average = [&](int64_t numel, WireFormat format) { average_on_stream(at::ones({numel}), format, group); };
    average(50, WireFormat::kFp32);
    EXPECT_THROW(average(rank == 0 ? 60 : 70, WireFormat::kFp32), c10::ValueError);
    EXPECT_THROW(average(50, rank == 0 ? WireFormat::kBf16 : WireFormat::kFp16), c10::ValueError);
    EXPECT_THROW(average(rank == 0 ? 60 : 70, WireFormat::kFp32), c10::ValueError) << "what was refused is unknown";
    average(50, WireFormat::kFp32);
  });
}

class KeptMemory : public ::testing::TestWithParam<int64_t> {};

TEST_P(KeptMemory, SufficesForAllCallsThatAreNoLarger) {
  const CountingAllocator& allocations = counter();
  run_ranks(GetParam(), [&](int64_t, const Group& group) {
    const at::Tensor large = at::ones({200'003});
    const at::Tensor small = at::ones({100'001});
    quantized_all_reduce_(large, WireFormat::kInt8B128, group);
    wait_for_ranks(group);
    const int64_t before = allocations.count();
    wait_for_ranks(group);
    for (int64_t call = 0; call < 3; ++call) {
      quantized_all_reduce_(large, WireFormat::kInt8B128, group);
      quantized_all_reduce_(large, WireFormat::kInt4B32, group);
      quantized_all_reduce_(small, WireFormat::kInt8B128, group);
    }
    wait_for_ranks(group);
    EXPECT_EQ(allocations.count(), before);
    wait_for_ranks(group);
  });
}

INSTANTIATE_TEST_SUITE_P(Worlds, KeptMemory, ::testing::Values(1, 2, 3, 4));

TEST(GroupWorkspace, IsTheGroupsOwnAndGoesAfterIt) {
  std::vector<std::weak_ptr<GroupWorkspace>> watched(2);
  std::vector<c10::weak_intrusive_ptr<c10::StorageImpl>> caller(
      2, c10::weak_intrusive_ptr<c10::StorageImpl>(c10::intrusive_ptr<c10::StorageImpl>()));
  for (int64_t groups = 0; groups < 2; ++groups) {  // The second ones have the first ones' name.
    run_ranks(2, [&](int64_t rank, const Group& group) {
      {
        const at::Tensor x = at::full({40'001}, rank, at::kFloat);
        quantized_all_reduce_(x, WireFormat::kFp32, group);
        EXPECT_TRUE(x.eq(0.5).all().item<bool>());
        caller[rank] = x.storage().getWeakStorageImpl();
      }
      EXPECT_TRUE(caller[rank].expired()) << "a call keeps nothing of the caller's";
      EXPECT_TRUE(watched[rank].expired()) << "that was the former group's";
      const auto workspace = GroupWorkspace::of(group);
      EXPECT_EQ(workspace, GroupWorkspace::of(group));
      watched[rank] = workspace;
    });
  }
  run_ranks(1, [](int64_t, const Group& group) { GroupWorkspace::of(group); });
  for (const auto& workspace : watched) {
    EXPECT_TRUE(workspace.expired()) << "a call on any group frees what others had";
  }
}

// In which order is up to the threads, so that all of them make the same call.
TEST(GroupWorkspace, SeveralThreadsOfARankMayCall) {
  run_ranks(3, [](int64_t rank, const Group& group) {
    std::vector<std::thread> threads;
    for (int64_t i = 0; i < 3; ++i) {
      threads.emplace_back([&] {
        for (int64_t call = 0; call < 5; ++call) {
          const at::Tensor x = at::full({40'001}, rank, at::kFloat);
          quantized_all_reduce_(x, WireFormat::kFp32, group);
          EXPECT_TRUE(x.eq(1).all().item<bool>());
        }
      });
    }
    for (std::thread& thread : threads) thread.join();
  });
}

}  // namespace
}  // namespace narrowcast::collectives

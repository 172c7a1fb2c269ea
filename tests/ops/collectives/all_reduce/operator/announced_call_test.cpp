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
#include <tuple>
#include <vector>

#include <narrowcast/quantized_all_reduce.h>
#include <narrowcast/quantized_reduce_scatter.h>
#include "tests/support/patience.h"
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
      average_on_stream(x, {WireFormat::kFp32}, group);
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
    const auto average = [&](int64_t numel, WireFormat format, Levels levels = Levels::kAuto) {
      average_on_stream(at::ones({numel}), {format, levels}, group);
    };
    average(50, WireFormat::kFp32);
    EXPECT_THROW(average(40, WireFormat::kFp32, rank == 0 ? Levels::kOne : Levels::kAuto), c10::ValueError);
    EXPECT_THROW(average(rank == 0 ? 60 : 70, WireFormat::kFp32), c10::ValueError);
    EXPECT_THROW(average(50, rank == 0 ? WireFormat::kBf16 : WireFormat::kFp16), c10::ValueError);
    EXPECT_THROW(average(rank == 0 ? 60 : 70, WireFormat::kFp32), c10::ValueError) << "what was refused is unknown";
    average(50, WireFormat::kFp32);
  });
}

class KeptMemory : public ::testing::TestWithParam<std::tuple<int64_t, Levels>> {};

TEST_P(KeptMemory, SufficesForAllCallsThatAreNoLarger) {
  const CountingAllocator& allocations = counter();
  const auto [ranks, levels] = GetParam();
  run_ranks(ranks, [&, levels = levels](int64_t, const Group& group) {
    if (group->getSize() == 4) GroupWorkspace::of(group)->set_nodes(node::find_nodes(group, 2));
    const at::Tensor large = at::ones({200'003});
    const at::Tensor small = at::ones({100'001});
    const at::Tensor shard = at::ones({200'000 / group->getSize()});
    const at::Tensor parts = large.narrow(0, 0, shard.numel() * group->getSize());
    const auto scatter = [&] {
      quantized_reduce_scatter_(shard, parts, WireFormat::kInt8B128, Reduction::kMean, group);
    };
    scatter();
    quantized_all_reduce_(large, WireFormat::kInt8B128, group, levels);
    wait_for_ranks(group);
    const int64_t before = allocations.count();
    wait_for_ranks(group);
    for (int64_t call = 0; call < 3; ++call) {
      quantized_all_reduce_(large, WireFormat::kInt8B128, group, levels);
      quantized_all_reduce_(large, WireFormat::kInt4B32, group, levels);
      scatter();
      quantized_all_reduce_(small, WireFormat::kInt8B128, group, levels);
    }
    wait_for_ranks(group);
    EXPECT_EQ(allocations.count(), before);
    wait_for_ranks(group);
  });
}

INSTANTIATE_TEST_SUITE_P(Worlds, KeptMemory,
                         ::testing::Combine(::testing::Values(1, 2, 3, 4),
                                            ::testing::Values(Levels::kOne, Levels::kAuto)));

TEST(GroupWorkspace, IsTheGroupsOwnAndGoesAfterIt) {
  std::vector<std::weak_ptr<GroupWorkspace>> watched(2);
  std::vector<std::weak_ptr<node::NodeMemory>> memory(2);
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
      EXPECT_TRUE(memory[rank].expired()) << "that was the former node's";
      const auto workspace = GroupWorkspace::of(group);
      EXPECT_EQ(workspace, GroupWorkspace::of(group));
      watched[rank] = workspace;
      memory[rank] = workspace->nodes()->memory;
      EXPECT_FALSE(memory[rank].expired());
    });
  }
  run_ranks(1, [](int64_t, const Group& group) { GroupWorkspace::of(group); });
  for (size_t rank = 0; rank < 2; ++rank) {
    EXPECT_TRUE(watched[rank].expired()) << "a call on any group frees what others had";
    EXPECT_TRUE(memory[rank].expired()) << "a call on any group frees what others had";
  }
}

// In which order is up to the threads, so that all of them make the same call.
TEST(GroupWorkspace, SeveralThreadsOfARankMayCall) {
  for (const Levels levels : {Levels::kOne, Levels::kAuto}) {
    run_ranks(3, [&](int64_t rank, const Group& group) {
      std::vector<std::thread> threads;
      for (int64_t i = 0; i < 3; ++i) {
        threads.emplace_back([&] {
          for (int64_t call = 0; call < 5; ++call) {
            const at::Tensor x = at::full({40'001}, rank, at::kFloat);
            quantized_all_reduce_(x, WireFormat::kFp32, group, levels);
            EXPECT_TRUE(x.eq(1).all().item<bool>());
          }
        });
      }
      for (std::thread& thread : threads) thread.join();
    });
  }
}

// The last reference to the group is a call's. Rank 1 calls once rank 0 has dropped its own.
TEST(GroupWorkspace, LetsTheGroupEndWithACallInFlight) {
  std::promise<void> was_dropped;
  const auto dropped = was_dropped.get_future().share();
  run_ranks(2, [&](int64_t rank, const Group& group) {
    auto own = c10::make_intrusive<c10d::ProcessGroup>(group->getStore(), static_cast<int>(rank), 2);
    own->setBackend(at::kCPU, c10d::ProcessGroup::BackendType::GLOO, group->getBackend(at::kCPU));
    const c10::weak_intrusive_ptr<c10d::ProcessGroup> watched(own);
    std::weak_ptr<node::NodeMemory> memory;
    std::thread call([group_of_call = own, rank, dropped, &memory]() mutable {
      if (rank == 1) dropped.wait();
      const at::Tensor x = at::full({40'001}, rank, at::kFloat);
      quantized_all_reduce_(x, WireFormat::kFp32, group_of_call);
      EXPECT_TRUE(x.eq(0.5).all().item<bool>());
      memory = GroupWorkspace::of(group_of_call)->nodes()->memory;
      group_of_call.reset();
    });
    own.reset();
    if (rank == 0) was_dropped.set_value();
    call.join();
    EXPECT_TRUE(watched.expired());
    EXPECT_EQ(memory.lock(), GroupWorkspace::of(group)->nodes()->memory) << "the backend, and its nodes, live on";
  });
}

// A job that notes whether it was prepared.
class Prepared final : public engine::Job {
 public:
  explicit Prepared(std::atomic<bool>* noted) : noted_(noted) {}
  std::string name() const override { return "a job"; }
  void prepare() override { noted_->store(true); }
  void start(engine::Transport& /*transport*/) override {}
  at::Tensor finish(engine::Transport& /*transport*/) override { return {}; }

 private:
  std::atomic<bool>* const noted_;
};

// The time of copying passes while announcements are in flight.
TEST(AnnouncedJob, PreparesItsJobBeforeAllRanksHaveAnnounced) {
  std::atomic<bool> is_prepared = false;
  std::atomic<bool> is_other_prepared = false;
  run_ranks(2, [&](int64_t rank, const Group& group) {
    const auto deadline = std::chrono::steady_clock::now() + testing::kPatience / 4;
    while (rank == 1 && !is_prepared && std::chrono::steady_clock::now() < deadline) testing::pause_between_looks();
    EXPECT_EQ(is_prepared, rank == 1);
    const auto announced = std::make_shared<AnnouncedJob>(rank, 2);
    announced->set_call({.call = "a call"}, std::make_shared<Prepared>(rank == 0 ? &is_prepared : &is_other_prepared));
    engine::Engine::for_group(group)->submit(announced)->waitAndThrow();
  });
}

// Else a job that follows a call on which ranks differ could take its array for that of the job.
TEST(AnnouncedJob, APreparedAllReduceShowsNothingToOtherRanks) {
  run_ranks(2, [](int64_t rank, const Group& group) {
    const auto nodes = node::find_nodes(group);
    const auto job = std::make_shared<AllReduceJob>(
        AllReduceJobOptions{.name = "a mean", .rank = rank, .world_size = 2, .numel = 30'000, .nodes = nodes},
        JobMemory{});
    const auto staged = [&] {
      return nodes->memory->has_reached(node::Phase::kStaged, {.array = 0, .slot = 0, .number = 1}, rank);
    };
    if (rank == 0) {
      job->set_call({at::full({30'000}, 100, at::kFloat), {}, {}});
      job->prepare();
      EXPECT_FALSE(staged());
      job->cancel();
    }
    const at::Tensor x = at::full({30'000}, rank, at::kFloat);
    job->set_call({x, {}, {}});
    engine::Engine::for_group(group)->submit(job)->waitAndThrow();
    EXPECT_TRUE(x.eq(0.5).all().item<bool>());
    EXPECT_TRUE(staged());
  });
}

// Exchanges take slots of the node's memory in the order of jobs, also if announcements come late.
TEST(AnnouncedJob, StartsItsAllReduceBeforeTheNextJobStarts) {
  run_ranks(3, [](int64_t rank, const Group& group) {
    const auto engine = engine::Engine::for_group(group);
    const auto nodes = node::find_nodes(group);
    const auto make_mean = [&] {
      return std::make_shared<AllReduceJob>(
          AllReduceJobOptions{.name = "a mean", .rank = rank, .world_size = 3, .numel = 30'000, .nodes = nodes},
          JobMemory{});
    };
    const auto announced = std::make_shared<AnnouncedJob>(rank, 3);
    const auto first = make_mean();
    const auto second = make_mean();
    for (int64_t round = 0; round < 60; ++round) {
      const at::Tensor x = at::full({30'000}, rank, at::kFloat);
      const at::Tensor y = at::full({30'000}, 10 + rank, at::kFloat);
      first->set_call({x, {}, {}});
      second->set_call({y, {}, {}});
      announced->set_call({.call = "a call"}, first);
      if (rank != round % 3) {  // One rank submits the next job only after the call: its slots are in order.
        const auto call = engine->submit(announced);
        engine->submit(second)->waitAndThrow();
        call->waitAndThrow();
      } else {
        engine->submit(announced)->waitAndThrow();
        engine->submit(second)->waitAndThrow();
      }
      EXPECT_TRUE(x.eq(1).all().item<bool>());
      EXPECT_TRUE(y.eq(11).all().item<bool>());
    }
  });
}

}  // namespace
}  // namespace narrowcast::collectives

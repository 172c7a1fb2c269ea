#include "trainer/ddp/process_group/loss_watch.h"

#include <ATen/ops/zeros.h>
#include <c10/util/Exception.h>
#include <gtest/gtest.h>

#include <atomic>
#include <future>
#include <map>
#include <memory>
#include <mutex>
#include <string>
#include <vector>

#include "tests/support/breakable_group.h"
#include "tests/support/ranks.h"

namespace narrowcast {
namespace {

using namespace std::chrono_literals;
using testing::run_ranks;
using Backend = c10::intrusive_ptr<c10d::Backend>;

constexpr int kOtherTag = 7;

Backend cpu_backend(const c10::intrusive_ptr<c10d::ProcessGroup>& group) {
  return group->getBackend(c10::DeviceType::CPU);
}

using testing::Death;

// Records the news that each rank got, which it must get once.
class Told {
 public:
  LossWatch::OnLoss of(int64_t rank) {
    return [this, rank](int64_t lost, const std::string& how) {
      const std::lock_guard<std::mutex> lock(mutex_);
      losses_[rank].push_back("rank " + std::to_string(lost) + ": " + how);
    };
  }
  std::vector<std::string> at(int64_t rank) {
    const std::lock_guard<std::mutex> lock(mutex_);
    return losses_[rank];
  }

 private:
  std::mutex mutex_;
  std::map<int64_t, std::vector<std::string>> losses_;
};

// For several numbers of ranks, also if the rank that watches the lost one is the last to get the news.
TEST(LossWatchTest, AllRanksLearnWhoIsGone) {
  for (const int64_t world_size : {2, 3, 5}) {
    for (const int64_t lost : {int64_t{0}, world_size - 1}) {
      Told told;
      EXPECT_THROW(run_ranks(world_size,
                             [&](int64_t rank, const auto& group) {
                               const LossWatch watch(cpu_backend(group), told.of(rank));
                               testing::wait_for_ranks(group);
                               if (rank == lost) {
                                 throw Death();
                               }
                               watch.wait_for_loss(testing::kPatience);
                               EXPECT_EQ(told.at(rank), std::vector<std::string>{"rank " + std::to_string(lost) +
                                                                                 ": it has closed its connections"})
                                   << rank << " of " << world_size;
                             }),
                   Death);
    }
  }
}

TEST(LossWatchTest, AllRanksLearnWhoIsSilent) {
  Told told;
  run_ranks(3, [&](int64_t rank, const auto& group) {
    const LossWatch watch(cpu_backend(group), told.of(rank));
    EXPECT_EQ(watch.next(), (rank + 1) % 3);
    if (rank == 0) {
      watch.on_silence(30s)();
      watch.on_silence(30s)();
    }
    if (rank != 1) {
      watch.wait_for_loss(testing::kPatience);
      EXPECT_EQ(told.at(rank), std::vector<std::string>{"rank 1: it has sent no heartbeat for 30 s"});
    }
    testing::wait_for_ranks(group);
  });
  EXPECT_TRUE(told.at(1).empty());
}

// Rank 1 ends its work well, and then closes its connections.
TEST(LossWatchTest, ARankThatSendsItsEndIsNotLost) {
  Told told;
  EXPECT_THROW(run_ranks(2,
                         [&](int64_t rank, const auto& group) {
                           auto watch = std::make_unique<LossWatch>(cpu_backend(group), told.of(rank));
                           testing::wait_for_ranks(group);
                           if (rank == 1) {
                             watch.reset();
                             throw Death();
                           }
                           std::vector<at::Tensor> nothing = {at::zeros({1})};
                           EXPECT_ANY_THROW(group->recv(nothing, 1, kOtherTag)->wait());  // The connection is closed.
                           watch->on_silence(30s)();
                         }),
               Death);
  EXPECT_TRUE(told.at(0).empty());
}

TEST(LossWatchTest, SilenceAfterTheEndIsNothing) {
  run_ranks(2, [](int64_t /*rank*/, const auto& group) {
    std::function<void()> on_silence;
    {
      const LossWatch watch(cpu_backend(group), [](int64_t, const std::string&) { FAIL(); });
      on_silence = watch.on_silence(30s);
    }
    on_silence();
  });
}

// Gloo closes all connections when one of its messages is late, although the rank at the other end is well.
TEST(LossWatchTest, ATimeOutOfOnesOwnBlamesNobody) {
  Told told;
  run_ranks(2, [&](int64_t rank, const auto& group) {
    const LossWatch watch(cpu_backend(group), told.of(rank));
    testing::wait_for_ranks(group);
    if (rank == 0) {
      std::vector<at::Tensor> late = {at::zeros({1})};
      EXPECT_ANY_THROW(group->recv(late, 1, kOtherTag)->wait(10ms));
    } else {
      watch.wait_for_loss(testing::kPatience);
    }
  });
  EXPECT_TRUE(told.at(0).empty());
  EXPECT_EQ(told.at(1), std::vector<std::string>{"rank 0: it has closed its connections"});
}

TEST(LossWatchTest, NeedsAnotherRank) {
  run_ranks(1, [](int64_t /*rank*/, const auto& group) {
    EXPECT_THROW(LossWatch(cpu_backend(group), [](int64_t, const std::string&) {}), c10::ValueError);
  });
}

}  // namespace
}  // namespace narrowcast

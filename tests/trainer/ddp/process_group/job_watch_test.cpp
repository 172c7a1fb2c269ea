#include "trainer/ddp/process_group/job_watch.h"

#include <ATen/ops/zeros.h>
#include <c10/util/Exception.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <future>
#include <latch>
#include <new>
#include <stdexcept>
#include <string>
#include <vector>

#include <narrowcast/errors.h>
#include "ops/comm/groups/broken_groups.h"
#include "tests/support/breakable_group.h"
#include "tests/support/error_message.h"
#include "tests/support/ranks.h"
#include "trainer/base/program/failure.h"

namespace narrowcast {
namespace {

using namespace std::chrono_literals;
using collectives::SplitGroup;
using testing::BreakablePtr;
using testing::error_message;
using testing::run_ranks;

constexpr const char* kLoss = "rank 0: rank 1 is lost: it has closed its connections";

using testing::Death;

template <class Error>
Error error_of(const std::string& message) {
  return Error(c10::SourceLocation{__func__, __FILE__, __LINE__}, message);
}

JobWatch::Options breaking_off() { return {.breaks_off = true, .settling = testing::kPatience}; }

// Two ranks watch a job; rank 1 ends as if its process had died, rank 0 calls `body`.
template <class Body>
void lose_rank_1(const Body& body, const JobWatch::Options& options = breaking_off()) {
  EXPECT_THROW(run_ranks(2,
                         [&](int64_t rank, const auto& group) {
                           const BreakablePtr of_gpu = testing::add_breakable(group);
                           const JobWatch watch(group, options);
                           testing::wait_for_ranks(group);
                           if (rank == 1) {
                             throw Death();
                           }
                           body(watch, group, of_gpu);
                         }),
               Death);
}

// Handles errors of `body` as ProcessGroupScope does in a program.
template <class Body>
int exit_code_of(const JobWatch& watch, const Body& body) {
  return program::run_program("narrowcast-train", [&]() -> int {
    try {
      body();
      watch.throw_if_broken_off();
      return program::kSuccess;
    } catch (const std::exception& error) {
      watch.throw_explained(error);
      throw;
    }
  });
}

TEST(JobWatchTest, ALossBreaksOffEveryGroupOnceAndReleasesWhoWaits) {
  lose_rank_1([](const JobWatch& watch, const ProcessGroupPtr& group, const BreakablePtr& of_gpu) {
    const auto [node, of_node] = testing::breakable_group();
    const SplitGroup split(group, node);
    ::testing::internal::CaptureStderr();
    const int code = exit_code_of(watch, [&, &of_node = of_node] {
      EXPECT_TRUE(of_node->wait_for_abort());
      TORCH_CHECK(false, "CUDA error: unspecified launch failure");  // A GPU may fail so then.
    });
    EXPECT_EQ(::testing::internal::GetCapturedStderr(), std::string("narrowcast-train: ") + kLoss + "\n");
    EXPECT_EQ(code, program::kPeerFailed);
    EXPECT_TRUE(of_gpu->wait_for_abort());
    EXPECT_EQ(of_gpu->aborts(), 1);
    EXPECT_EQ(of_node->aborts(), 1);
  });
}

TEST(JobWatchTest, ALossIsWhatErrorsOfNetworkAndGpuMean) {
  lose_rank_1([](const JobWatch& watch, const ProcessGroupPtr& /*group*/, const BreakablePtr& of_gpu) {
    // The first error may come before the news of the loss.
    EXPECT_EQ(error_message<c10::DistBackendError>([&] {
                watch.throw_explained(error_of<c10::DistBackendError>("rank 0: backward pass failed: NCCL error"));
              }),
              kLoss);
    EXPECT_TRUE(of_gpu->wait_for_abort());
    EXPECT_EQ(error_message<c10::DistBackendError>([&] { watch.throw_explained(error_of<c10::Error>("CUDA error")); }),
              kLoss);
    EXPECT_EQ(error_message<c10::DistBackendError>([&] { watch.throw_explained(std::runtime_error("gloo")); }), kLoss);
    EXPECT_EQ(error_message<c10::DistBackendError>([&] { watch.throw_if_broken_off(); }), kLoss);
  });
}

TEST(JobWatchTest, ErrorsOfOnesOwnStayWhatTheyAre) {
  lose_rank_1([](const JobWatch& watch, const ProcessGroupPtr& /*group*/, const BreakablePtr& of_gpu) {
    EXPECT_TRUE(of_gpu->wait_for_abort());
    EXPECT_NO_THROW(watch.throw_explained(error_of<c10::ValueError>("--steps")));
    EXPECT_NO_THROW(watch.throw_explained(error_of<OutputError>("disk full")));
    EXPECT_NO_THROW(watch.throw_explained(error_of<CorruptInputError>("bad file")));
    EXPECT_NO_THROW(watch.throw_explained(std::bad_alloc()));
  });
}

// Numbers that were read from a GPU after the loss are not valid.
TEST(JobWatchTest, AReturnAfterALossIsNone) {
  lose_rank_1([](const JobWatch& watch, const ProcessGroupPtr& /*group*/, const BreakablePtr& of_gpu) {
    EXPECT_EQ(exit_code_of(watch, [&] { EXPECT_TRUE(of_gpu->wait_for_abort()); }), program::kPeerFailed);
  });
}

TEST(JobWatchTest, BreaksNothingOffThatEndsByItself) {
  lose_rank_1(
      [](const JobWatch& watch, const ProcessGroupPtr& group, const BreakablePtr& of_gpu) {
        std::vector<at::Tensor> nothing = {at::zeros({1})};
        EXPECT_ANY_THROW(group->recv(nothing, 1, 7)->wait());
        EXPECT_NO_THROW(watch.throw_explained(error_of<c10::DistBackendError>("rank 0: recv failed: closed")));
        EXPECT_NO_THROW(watch.throw_if_broken_off());
        EXPECT_EQ(of_gpu->aborts(), 0);
      },
      {.breaks_off = false});
}

// Rank 1 runs, but its watch does not: as if its process were stopped. It has given a sign before.
TEST(JobWatchTest, ARankWithoutASignIsLost) {
  run_ranks(2, [](int64_t rank, const auto& group) {
    const BreakablePtr of_gpu = testing::add_breakable(group);
    JobWatch::Options options = breaking_off();
    options.look_every = 5ms;
    options.silence = 1s;
    if (rank == 1) {
      group->getStore()->add("watch/sign/1", 1);
      const LossWatch ring(group->getBackend(c10::DeviceType::CPU), [](int64_t, const std::string&) {});
      testing::wait_for_ranks(group);
      return;
    }
    const JobWatch watch(group, options);
    EXPECT_TRUE(of_gpu->wait_for_abort());
    EXPECT_EQ(error_message<c10::DistBackendError>([&] { watch.throw_if_broken_off(); }),
              "rank 0: rank 1 is lost: it has sent no heartbeat for 1 s");
    testing::wait_for_ranks(group);
  });
}

// Where collectives are broken off, too, the launcher is asked first. If it replaces the rank, the connections to it
// break.
TEST(JobWatchTest, ASilentRankIsReplacedBeforeCollectivesAreBrokenOff) {
  for (const bool is_replaced : {true, false}) {
    run_ranks(2, [&](int64_t rank, const auto& group) {
      const BreakablePtr of_gpu = testing::add_breakable(group);
      if (rank == 1) {
        group->getStore()->add("watch/sign/1", 1);
        const LossWatch ring(group->getBackend(c10::DeviceType::CPU), [](int64_t, const std::string&) {});
        testing::wait_for_ranks(group);
        return;
      }
      std::promise<int64_t> asked;
      JobWatch::Options options = breaking_off();
      options.look_every = 5ms;
      options.silence = 1s;
      options.replaces_silent = [&](int64_t lost) {
        EXPECT_EQ(of_gpu->aborts(), 0);
        asked.set_value(lost);
        return is_replaced;
      };
      const JobWatch watch(group, options);
      EXPECT_EQ(asked.get_future().get(), 1);
      if (!is_replaced) {
        EXPECT_TRUE(of_gpu->wait_for_abort());
      }
      testing::wait_for_ranks(group);
      EXPECT_EQ(of_gpu->aborts(), is_replaced ? 0 : 1);
    });
  }
}

// Ranks 0 and 2 ask about rank 1. While they wait for the answer they give no sign, and are not lost.
TEST(JobWatchTest, WhoAsksForAReplacementIsNotLost) {
  std::latch both_asked(2);
  run_ranks(3, [&](int64_t rank, const auto& group) {
    const BreakablePtr of_gpu = testing::add_breakable(group);
    if (rank == 1) {
      group->getStore()->add("watch/sign/1", 1);
      const LossWatch ring(group->getBackend(c10::DeviceType::CPU), [](int64_t, const std::string&) {});
      testing::wait_for_ranks(group);
      return;
    }
    std::promise<int64_t> asked;
    JobWatch::Options options = breaking_off();
    options.look_every = 5ms;
    options.silence = 1s;
    options.replaces_silent = [&](int64_t lost) {
      asked.set_value(lost);
      both_asked.arrive_and_wait();
      return true;
    };
    const JobWatch watch(group, options);
    EXPECT_EQ(asked.get_future().get(), 1);
    testing::wait_for_ranks(group);
    EXPECT_EQ(of_gpu->aborts(), 0);
  });
}

// A backend that ended its collectives itself does not know who was late; the ranks that are asked do.
TEST(JobWatchTest, ATimeOutOfABackendIsToldWithWhatTheOthersDo) {
  run_ranks(2, [](int64_t rank, const auto& group) {
    const BreakablePtr of_gpu = testing::add_breakable(group);
    JobWatch::Options options = breaking_off();
    options.settling = 1ms;
    options.look_every = 5ms;
    const JobWatch watch(group, options);
    if (rank == 0) {
      of_gpu->error = c10d::ErrorType::TIMEOUT;
      EXPECT_EQ(error_message<c10::DistBackendError>(
                    [&] { watch.throw_explained(error_of<c10::DistBackendError>("NCCL communicator was aborted")); }),
                "rank 0: a collective timed out; rank 1 is not in a collective");
    }
    testing::wait_for_ranks(group);
  });
}

// If nothing can be aborted, the process should end. A rank that sees another rank end first blames the lost rank as
// well.
TEST(JobWatchTest, SilenceIsToldWhereNothingIsBrokenOff) {
  run_ranks(2, [](int64_t rank, const auto& group) {
    std::promise<std::string> told;
    const JobWatch::Options options = {
        .silence = 1s, .on_silence = [&](const std::string& why) { told.set_value(why); }, .look_every = 5ms};
    if (rank == 1) {
      group->getStore()->add("watch/sign/1", 1);
      return testing::wait_for_ranks(group);
    }
    const JobWatch watch(group, options);
    const std::string kSilence = "rank 0: rank 1 is lost: it has sent no heartbeat for 1 s";
    EXPECT_EQ(told.get_future().get(), kSilence);
    EXPECT_EQ(error_message<c10::DistBackendError>([&] {
                watch.throw_explained(error_of<c10::DistBackendError>("rank 0: recv failed: Connection closed"));
              }),
              kSilence);
    EXPECT_NO_THROW(watch.throw_explained(error_of<c10::ValueError>("--steps")));
    testing::wait_for_ranks(group);
  });
}

// Another process takes the place of the silent rank, or nobody does: only then this process ends.
TEST(JobWatchTest, ASilentRankIsReplacedBeforeAProcessEndsForIt) {
  for (const bool is_replaced : {true, false}) {
    run_ranks(2, [&](int64_t rank, const auto& group) {
      if (rank == 1) {
        group->getStore()->add("watch/sign/1", 1);
        return testing::wait_for_ranks(group);
      }
      std::promise<std::string> told;
      std::promise<int64_t> asked;
      {
        const JobWatch watch(group, {.silence = 1s,
                                     .on_silence = [&](const std::string& why) { told.set_value(why); },
                                     .replaces_silent =
                                         [&](int64_t lost) {
                                           asked.set_value(lost);
                                           TORCH_CHECK(is_replaced, "the launcher's store is gone");
                                           return true;
                                         },
                                     .look_every = 5ms});
        EXPECT_EQ(asked.get_future().get(), 1);
        if (!is_replaced) {
          EXPECT_EQ(told.get_future().get(), "rank 0: rank 1 is lost: it has sent no heartbeat for 1 s");
        }
      }
      if (is_replaced) {
        EXPECT_EQ(told.get_future().wait_for(0s), std::future_status::timeout) << "the watch's thread has ended";
      }
      testing::wait_for_ranks(group);
    });
  }
}

}  // namespace
}  // namespace narrowcast

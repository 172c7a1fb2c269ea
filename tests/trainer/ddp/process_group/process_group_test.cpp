#include <narrowcast/process_group.h>

#include <c10/util/Exception.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <chrono>
#include <cstdlib>
#include <future>
#include <stdexcept>
#include <string>
#include <torch/csrc/distributed/c10d/GroupRegistry.hpp>
#include <torch/csrc/distributed/c10d/TCPStore.hpp>

#include <narrowcast/consensus.h>
#include "tests/support/error_message.h"
#include "tests/support/loopback_socket.h"
#include "tests/support/open_file_limit.h"
#include "tests/support/patience.h"
#include "tests/trainer/ddp/process_group/ranks_on_threads.h"
#include "trainer/base/process/process_limits.h"
#include "trainer/ddp/process_group/change_watch.h"

namespace narrowcast {
namespace {

using ::testing::AllOf;
using testing::env_at;
using testing::error_message;
using testing::free_port;
using ::testing::HasSubstr;
using testing::sum_ranks_on_threads;
using namespace std::chrono_literals;

std::string init_error(const WorkerEnv& env, std::chrono::milliseconds timeout) {
  return error_message<c10::DistBackendError>([&] { init_process_group(env, {.timeout = timeout}); });
}

class ProcessGroupWorldTest : public ::testing::TestWithParam<int64_t> {};

TEST_P(ProcessGroupWorldTest, JoinsAllRanks) {
  const int64_t world_size = GetParam();
  const int64_t port = free_port();
  sum_ranks_on_threads(world_size, [&](int64_t rank) { return env_at({rank, world_size}, port); });
}

INSTANTIATE_TEST_SUITE_P(Worlds, ProcessGroupWorldTest, ::testing::Values(1, 2, 3, 4));

// Two nodes of one rank each, in this process, and their launchers' store.
class ChangingNodesTest : public ::testing::Test {
 protected:
  ChangingNodesTest() { set_places("0 1:1,2:1"); }
  void set_places(const std::string& places) {
    launcher_.set("narrowcast/run/places", std::vector<uint8_t>(places.begin(), places.end()));
  }
  WorkerEnv env(int64_t rank) const {
    WorkerEnv env = env_at({rank, 2}, launcher_.getPort());
    env.use_agent_store = true;
    env.recovers_in_place = true;
    env.node = rank + 1;
    env.run_id = "run";
    return env;
  }
  // Calls body(scope) on both ranks, which have joined.
  template <class Body>
  void on_ranks(const Body& body) {
    std::vector<std::future<void>> ranks;
    for (int64_t rank = 0; rank < 2; ++rank) {
      ranks.push_back(std::async(std::launch::async, [&, rank] {
        const ProcessGroupScope scope(env(rank), {.group_name = "nodes" + std::to_string(rank)});
        body(scope);
      }));
    }
    for (auto& rank : ranks) rank.get();
  }
  c10d::TCPStore launcher_{"127.0.0.1", c10d::TCPStoreOptions{.port = 0, .isServer = true, .waitWorkers = false}};
};

// No connection breaks by itself: the machine of the lost node is gone without a sign.
TEST_F(ChangingNodesTest, ALossEndsTheWaitForARankThatIsGone) {
  std::promise<void> is_over;
  const std::shared_future<void> over = is_over.get_future().share();
  on_ranks([&](const ProcessGroupScope& scope) {
    barrier(scope.group(), "until no rank connects any more");
    if (scope.env().rank == 1) {
      return over.wait();
    }
    EXPECT_FALSE(has_newcomers(scope));
    set_places("1 1:1");
    launcher_.add("narrowcast/run/starts", 1);
    std::vector<at::Tensor> tensors = {at::zeros({3})};
    EXPECT_ANY_THROW(scope.group()->recv(tensors, 1, 0)->wait());
    is_over.set_value();
  });
}

TEST_F(ChangingNodesTest, RanksMayTellThatNewcomersMustWait) {
  on_ranks([&](const ProcessGroupScope& scope) {
    barrier(scope.group(), "until no rank connects any more");
    keep_newcomers_out(scope);
    EXPECT_FALSE(has_newcomers(scope));
    launcher_.wait({"narrowcast/run/regroups"}, testing::kPatience);
    EXPECT_TRUE(launcher_.check({"narrowcast/run/keeps_newcomers_out"})) << "before";
    barrier(scope.group(), "test");
  });
}

TEST_F(ChangingNodesTest, RanksMayTellWhichNumberOfRanksFits) {
  on_ranks([&](const ProcessGroupScope& scope) {
    barrier(scope.group(), "until no rank connects any more");
    let_ranks_divide(scope, 18);
    EXPECT_FALSE(has_newcomers(scope));
    launcher_.wait({"narrowcast/run/regroups"}, testing::kPatience);
    EXPECT_EQ(launcher_.get_to_str("narrowcast/run/ranks_divide"), "18") << "before";
    barrier(scope.group(), "test");
  });
}

// Rank 1 lives, but hangs before it joins, e.g. while it reads its data. The launcher replaces it.
TEST_F(ChangingNodesTest, ARankThatDoesNotComeInTimeIsReplaced) {
  const auto join = [&](int64_t rank) {
    return std::async(std::launch::async, [&, rank] {
      const ProcessGroupScope scope(env(rank),
                                    {.timeout = std::chrono::seconds(8), .group_name = "late" + std::to_string(rank)});
      return all_reduce_sum(scope.group(), {1}).at(0);
    });
  };
  auto waits = join(0);
  while (!launcher_.check({"narrowcast/run/silent/2/0"})) {
    if (waits.wait_for(std::chrono::seconds(0)) == std::future_status::ready) waits.get();  // Throws why it has ended.
    testing::pause_between_looks();
  }
  launcher_.add("narrowcast/run/starts", 1);
  auto replaces = join(1);
  EXPECT_EQ(waits.get(), 2);
  EXPECT_EQ(replaces.get(), 2);
}

TEST_F(ChangingNodesTest, NewcomersBreakNothing) {
  on_ranks([&](const ProcessGroupScope& scope) {
    barrier(scope.group(), "until no rank connects any more");
    if (scope.env().rank == 0) {
      set_places("1 1:1,2:1,3:1");
      launcher_.set("narrowcast/run/ready/3/0", std::vector<uint8_t>{'1'});
    }
    while (!has_newcomers(scope)) testing::pause_between_looks();
    EXPECT_TRUE(launcher_.check({"narrowcast/run/regroups"})) << "somebody asks";
    barrier(scope.group(), "test");
  });
}

TEST(ProcessGroupTest, IsAClientOfTheAgentsStore) {
  c10d::TCPStoreOptions options;
  options.port = 0;
  options.isServer = true;
  const auto agent = c10::make_intrusive<c10d::TCPStore>("127.0.0.1", options);
  for (const int64_t restart_count : {0, 1}) {  // The second job finds the first one's keys in the store.
    sum_ranks_on_threads(2, [&](int64_t rank) {
      WorkerEnv env = env_at({rank, 2}, agent->getPort());
      env.use_agent_store = true;
      env.restart_count = restart_count;
      return env;
    });
  }
}

TEST(ProcessGroupTest, OneProcessAloneIsRegisteredUnderPyTorchsName) {
  {
    const ProcessGroupScope scope(WorkerEnv{});
    EXPECT_EQ(scope.group()->getSize(), 1);
    EXPECT_EQ(scope.group()->getRank(), 0);
    EXPECT_EQ(c10d::resolve_process_group("0").get(), scope.group().get());
  }
  EXPECT_THROW(c10d::resolve_process_group("0"), c10::Error);
  const ProcessGroupScope again(WorkerEnv{});
  EXPECT_EQ(again.group()->getSize(), 1);
  shutdown_process_group();  // Called directly: the scope finds nothing left to do.
  EXPECT_THROW(shutdown_process_group(), c10::Error);
}

// The registry does not own the group, whose last reference may be dropped before it is shut down.
TEST(ProcessGroupTest, AGroupThatIsGoneIsShutDownAsWell) {
  for (int round = 0; round < 2; ++round) {
    init_process_group(WorkerEnv{}).reset();
    EXPECT_NO_THROW(shutdown_process_group());
    EXPECT_THROW(shutdown_process_group(), c10::Error) << "there is none any more";
  }
}

TEST(ProcessGroupTest, AnExceptionEndsTheScopeToo) {
  const auto fail_within_scope = [] {
    const ProcessGroupScope scope(WorkerEnv{});
    throw std::runtime_error("in the job");
  };
  EXPECT_THROW(fail_within_scope(), std::runtime_error);
  EXPECT_THROW(c10d::resolve_process_group("0"), c10::Error);
}

TEST(ProcessGroupTest, SaysThatThePortIsInUse) {
  const network::ListeningSocket taken = testing::loopback_socket();
  const auto start = std::chrono::steady_clock::now();
  EXPECT_THAT(init_error(env_at({.rank = 0}, taken.port()), testing::kPatience),
              AllOf(HasSubstr("rank 0: serving the store at 127.0.0.1:" + std::to_string(taken.port()) + " failed"),
                    HasSubstr("Address already in use"), ::testing::Not(HasSubstr("\n"))));
  EXPECT_LT(std::chrono::steady_clock::now() - start, testing::kPatience / 2);
}

TEST(ProcessGroupTest, SaysThatTheMasterCannotBeReached) {
  const int64_t port = free_port();
  const auto start = std::chrono::steady_clock::now();
  EXPECT_THAT(init_error(env_at({.rank = 1}, port), 1s),
              HasSubstr("rank 1: reaching the store at 127.0.0.1:" + std::to_string(port) + " failed"));
  EXPECT_LT(std::chrono::steady_clock::now() - start, testing::kPatience / 2);
}

TEST(ProcessGroupTest, SaysThatARankDoesNotJoin) {
  EXPECT_THAT(init_error(env_at({.rank = 0}, free_port()), 3s),
              AllOf(HasSubstr("rank 0: joining the job"), HasSubstr("rank 1 did not join")));
}

TEST(ProcessGroupTest, SaysThatTheMasterHasNoAddress) {
  WorkerEnv env = env_at({.rank = 1}, 29500);
  env.master_addr = "no-such-host.invalid";
  EXPECT_THAT(init_error(env, 1s), HasSubstr("no-such-host.invalid:29500"));
}

TEST(ProcessGroupTest, RejectsWrongOptions) {
  const auto value_error = [](const ProcessGroupOptions& options) {
    return error_message<c10::ValueError>([&] { init_process_group(WorkerEnv{}, options); });
  };
  EXPECT_THAT(value_error({.backend = "mpi"}), AllOf(HasSubstr("'mpi'"), HasSubstr("known: gloo, nccl")));
  EXPECT_THAT(value_error({.timeout = 0ms}), HasSubstr("timeout of 0 ms"));
  EXPECT_THAT(value_error({.interface = "no-such-if"}), HasSubstr("interface 'no-such-if' does not exist"));
  EXPECT_THAT(value_error({.group_name = ""}), HasSubstr("group_name"));
}

// The error of joining with at most `more` files in addition to those that are open.
std::string error_with_files(const WorkerEnv& env, int64_t more) {
  for (rlim_t files = 1;; ++files) {  // Open descriptors that the tests inherited may have any numbers.
    const testing::OpenFileLimit limit(files);
    if (network::open_files_left(more + 1) == more) {
      return error_message<c10::Error>([&] { init_process_group(env, {.timeout = 1s}); });
    }
  }
}

TEST(ProcessGroupOpenFilesTest, AreCountedBeforeAnyIsOpened) {
  const auto needs = [](int64_t files) {
    return c10::str("needs about ", files, " more; raise the limit (ulimit -n)");
  };
  for (const int64_t more : {0, 5, 12, 16, 21, 27}) {
    EXPECT_THAT(error_with_files(env_at({.rank = 0}, free_port()), more),
                AllOf(HasSubstr("RLIMIT_NOFILE: at most "), HasSubstr("rank 0 of 2 "), HasSubstr(needs(28))));
  }
  EXPECT_THAT(error_with_files(env_at({.rank = 1}, free_port()), 11), HasSubstr(needs(12)));
  EXPECT_THAT(error_with_files(env_at({.rank = 0, .world_size = 64}, free_port()), 60), HasSubstr(needs(338)));
  WorkerEnv agent_serves = env_at({.rank = 0}, free_port());
  agent_serves.use_agent_store = true;
  EXPECT_THAT(error_with_files(agent_serves, 11), HasSubstr(needs(12)));
}

TEST(ProcessGroupOpenFilesTest, AreEnoughForARankThatGoesOn) {
  EXPECT_THAT(error_with_files(env_at({.rank = 0}, free_port()), 28), HasSubstr("rank 1 did not join"));
}

// A program that returns from main without shutting down its group must still end well.
TEST(ProcessGroupExitTest, AProcessThatForgetsTheGroupExitsCleanly) {
  EXPECT_EXIT(
      {
        init_process_group(WorkerEnv{});
        std::exit(7);
      },
      ::testing::ExitedWithCode(7), "");
}

TEST(ProcessGroupExitTest, AProcessThatEndsTheScopeExitsCleanly) {
  EXPECT_EXIT(
      {
        { const ProcessGroupScope scope(WorkerEnv{}); }
        std::exit(7);
      },
      ::testing::ExitedWithCode(7), "");
}

}  // namespace
}  // namespace narrowcast

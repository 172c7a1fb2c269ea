#include "ops/comm/connections/group/connections.h"

#include <ATen/ATen.h>
#include <c10/util/Exception.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <unistd.h>

#include <array>
#include <atomic>
#include <chrono>
#include <future>
#include <memory>
#include <optional>
#include <string>
#include <thread>
#include <vector>

#include "ops/collectives/all_reduce/algorithms/all_reduce_job.h"
#include "ops/comm/engine/engine.h"
#include "ops/comm/node/find_nodes.h"
#include "tests/ops/comm/engine/two_hops.h"
#include "tests/support/breakable_group.h"
#include "tests/support/error_message.h"
#include "tests/support/open_file_limit.h"
#include "tests/support/ranks.h"

namespace narrowcast::connections {
namespace {

using collectives::AllReduceJob;
using engine::Engine;
using node::NodeLayout;
using ::testing::AllOf;
using ::testing::HasSubstr;
using testing::run_ranks;
using Group = c10::intrusive_ptr<c10d::ProcessGroup>;

NodeLayout flat(const Group& group) { return NodeLayout::flat(group->getSize()); }

// Exchanges of two hops, several at once.
void expect_exchanges(const Group& group, int64_t bytes) {
  const auto engine = Engine::for_group(group);
  std::vector<c10::intrusive_ptr<c10::ivalue::Future>> futures;
  for (int64_t number = 0; number < 4; ++number) {
    futures.push_back(engine->submit(std::make_shared<engine::TwoHops>(number, bytes)));
  }
  for (int64_t number = 0; number < 4; ++number) {
    futures[number]->waitAndThrow();
    EXPECT_EQ(futures[number]->value().toTensor().item<int64_t>(),
              engine::expected_sum(number, bytes, group->getRank(), group->getSize()));
  }
}

class OfWorld : public ::testing::TestWithParam<int64_t> {};

TEST_P(OfWorld, CarryTheExchangesOfTheEngine) {
  run_ranks(GetParam(), [](int64_t, const Group& group) {
    for (const int64_t count : {4, 4, 2, 1, 16}) {  // Opened, kept, replaced, closed and opened again.
      open_connections(group, count, flat(group));
      EXPECT_EQ(Engine::for_group(group)->carrier().backend == nullptr, count == 1 || group->getSize() == 1);
      for (const int64_t bytes : {1, 1000, 500'000}) expect_exchanges(group, bytes);
    }
  });
}

INSTANTIATE_TEST_SUITE_P(Connections, OfWorld, ::testing::Values(1, 2, 3, 4, 5));

struct Mean {
  int64_t ranks;
  int64_t node_size;
  collectives::LinkCost link;
};

constexpr collectives::LinkCost kOneShot{.seconds_per_hop = 1, .seconds_per_byte = 1e-12};
constexpr collectives::LinkCost kTwoShot{.seconds_per_hop = 1e-9, .seconds_per_byte = 1};

using NodesPtr = decltype(node::find_nodes(Group(), 1));

std::shared_ptr<AllReduceJob> job_of(const Mean& mean, int64_t rank, const NodesPtr& nodes, WireFormat format,
                                     const at::Tensor& values) {
  auto job = std::make_shared<AllReduceJob>(collectives::AllReduceJobOptions{.name = "a mean",
                                                                             .rank = rank,
                                                                             .world_size = mean.ranks,
                                                                             .numel = values.numel(),
                                                                             .format = format,
                                                                             .link = mean.link,
                                                                             .nodes = nodes},
                                            collectives::JobMemory{});
  job->set_call({values, {}, {}});
  return job;
}

// Submits that many means of ones at once. Ranks submit them a little apart.
void expect_equal_means(const Group& group, const Mean& mean, const NodesPtr& nodes, int64_t means, int64_t numel) {
  const auto engine = Engine::for_group(group);
  std::vector<at::Tensor> values;
  std::vector<c10::intrusive_ptr<c10::ivalue::Future>> futures;
  for (int64_t i = 0; i < means; ++i) {
    values.push_back(at::full({numel}, static_cast<float>(i + 1)));
    std::this_thread::sleep_for(std::chrono::milliseconds(3 * ((group->getRank() + i) % 3)));
    const auto job = job_of(mean, group->getRank(), nodes, WireFormat::kFp32, values.back());
    futures.push_back(engine->submit(job));
  }
  for (int64_t i = 0; i < means; ++i) {
    futures[i]->waitAndThrow();
    EXPECT_TRUE(at::equal(values[i], at::full({numel}, static_cast<float>(i + 1)))) << i;
  }
}

// A number, or the choice of the ranks.
constexpr std::array<std::optional<int64_t>, 6> kCounts = {1, 2, 3, 4, std::nullopt, 16};

// The bits of a mean, for every number of connections.
class OfMean : public ::testing::TestWithParam<Mean> {};

TEST_P(OfMean, DoNotChangeItsBits) {
  const Mean& mean = GetParam();
  run_ranks(mean.ranks, [&](int64_t rank, const Group& group) {
    const auto nodes = node::find_nodes(group, mean.node_size);
    at::manual_seed(100 + rank);
    const at::Tensor values = at::randn({300'000});
    const auto engine = Engine::for_group(group);
    for (const WireFormat format : {WireFormat::kInt8B128, WireFormat::kVar5, WireFormat::kFp32}) {
      at::Tensor expected;
      for (const std::optional<int64_t> count : kCounts) {
        open_connections(group, count, nodes->layout, {.least_round_trip = 0});
        if (!count && nodes->layout.nodes() > 1) {
          EXPECT_GE(engine->carrier().connections, 2) << "as on a long link";
          EXPECT_THAT(connections_text(group), AllOf(HasSubstr(" (auto: round trip "), HasSubstr(" MB in one)")));
        }
        const at::Tensor result = values.clone();
        engine->submit(job_of(mean, rank, nodes, format, result))->waitAndThrow();
        if (!expected.defined()) expected = result;
        EXPECT_TRUE(at::equal(result, expected)) << (count ? std::to_string(*count) : "auto") << " connections";
      }
    }
  });
}

constexpr std::array kMeans = {Mean{2, 1, kOneShot}, Mean{3, 1, kTwoShot}, Mean{3, 1, kOneShot},
                               Mean{4, 1, kTwoShot}, Mean{5, 1, kTwoShot}, Mean{4, 2, kOneShot},
                               Mean{5, 2, kTwoShot}, Mean{6, 2, kTwoShot}, Mean{3, 3, kOneShot}};

std::string name_of(const ::testing::TestParamInfo<Mean>& info) {
  return std::to_string(info.param.ranks) + "_in_nodes_of_" + std::to_string(info.param.node_size) +
         (info.param.link == kOneShot ? "_one_shot" : "_two_shot");
}

INSTANTIATE_TEST_SUITE_P(Connections, OfMean, ::testing::ValuesIn(kMeans), name_of);

// Messages wait in the network for their receives. The engine's rules prevent a deadlock.
class WithoutEarlyMessages : public ::testing::TestWithParam<Mean> {};

TEST_P(WithoutEarlyMessages, SeveralMeansInFlightEnd) {
  const Mean& mean = GetParam();
  run_ranks(mean.ranks, [&](int64_t, const Group& group) {
    const auto nodes = node::find_nodes(group, mean.node_size);
    for (const int64_t count : {2, 4}) {
      open_connections(group, count, nodes->layout, {.most_early_bytes = 0});
      // 2.8 MB for each: more than the kernel keeps for a rank that does not read.
      expect_equal_means(group, mean, nodes, 6, 700'000);
      if (mean.node_size == 1) expect_exchanges(group, 1'500'000);
    }
  });
}

INSTANTIATE_TEST_SUITE_P(Connections, WithoutEarlyMessages, ::testing::ValuesIn(kMeans), name_of);

// The messages of two jobs do not fill a long link.
TEST(Connections, FourExchangesStartBeforeTheFirstHasFinished) {
  run_ranks(2, [](int64_t rank, const Group& group) {
    open_connections(group, 2, flat(group));
    const auto engine = Engine::for_group(group);
    if (rank == 1) testing::wait_for_ranks(group);
    std::promise<void> four;
    std::atomic<int> started = 0;
    const auto on_start = [&] {
      if (++started == 4) four.set_value();
    };
    std::vector<c10::intrusive_ptr<c10::ivalue::Future>> futures;
    for (int64_t number = 0; number < 6; ++number) {
      futures.push_back(
          engine->submit(std::make_shared<engine::TwoHops>(number, 1000, engine::Observer{.on_start = on_start})));
    }
    EXPECT_EQ(four.get_future().wait_for(testing::kPatience), std::future_status::ready);
    if (rank == 0) {
      EXPECT_EQ(started, 4);
      testing::wait_for_ranks(group);
    }
    for (const auto& future : futures) future->waitAndThrow();
    EXPECT_EQ(started, 6);
  });
}

TEST(OpenConnections, OneNodeOpensNone) {
  run_ranks(2, [](int64_t, const Group& group) {
    open_connections(group, 4, NodeLayout::of_size(2, 2));
    EXPECT_EQ(Engine::for_group(group)->carrier().backend, nullptr);
    EXPECT_EQ(connections_text(group), "1 (one node)");
    expect_exchanges(group, 1000);
  });
}

TEST(ConnectionsText, NamesTheReasonOfThisNumberOnly) {
  run_ranks(2, [](int64_t, const Group& group) {
    const auto text = [&](std::optional<int64_t> count, const NodeLayout& layout) {
      open_connections(group, count, layout);
      return connections_text(group);
    };
    const NodeLayout one_node = NodeLayout::of_size(2, 2);
    EXPECT_EQ(connections_text(group), "1");
    EXPECT_EQ(text(std::nullopt, one_node), "1 (auto: one node)");
    EXPECT_EQ(text(1, flat(group)), "1") << "given, although the last choice was 1";
    EXPECT_THAT(text(std::nullopt, flat(group)), HasSubstr(" (auto: round trip "));
    EXPECT_EQ(text(3, flat(group)), "3");
    EXPECT_EQ(text(3, one_node), "1 (one node)");
  });
  run_ranks(1, [](int64_t, const Group& group) {
    open_connections(group, 3, flat(group));
    EXPECT_EQ(connections_text(group), "1 (one rank)");
  });
}

TEST(OpenConnections, RefusesOtherNumbersOnAllRanks) {
  run_ranks(3, [](int64_t rank, const Group& group) {
    const auto error_of = [&](int64_t count) {
      return testing::error_message<c10::ValueError>([&] { open_connections(group, count, flat(group)); });
    };
    EXPECT_EQ(error_of(rank == 2 ? 2 : 4),
              "opening connections: connections differs between ranks: rank 0 has 4, rank 2 has 2");
    EXPECT_EQ(error_of(rank == 1 ? 65 : 4), "opening connections on rank 1: connections: must be in 1..64, but is 65");
    EXPECT_EQ(error_of(0), "opening connections on rank 0: connections: must be in 1..64, but is 0");
    open_connections(group, 2, flat(group));
    expect_exchanges(group, 1000);
  });
}

TEST(ProcessesWithConnections, NameTheLimitOfOpenFilesOnAllRanks) {
  const auto codes = testing::fork_ranks(2, [](int64_t rank, const Group& group) {
    const auto limit = rank == 1 ? std::make_unique<testing::OpenFileLimit>(testing::next_descriptor() + 20) : nullptr;
    EXPECT_THAT(testing::error_message<c10::ValueError>([&] { open_connections(group, 64, flat(group)); }),
                AllOf(HasSubstr("opening connections on rank 1: connections: 64 with each of 1 ranks need 68 files, "
                                "but RLIMIT_NOFILE of "),
                      HasSubstr("; raise the limit (ulimit -n)")));
    open_connections(group, 4, flat(group));
    expect_exchanges(group, 1000);
  });
  EXPECT_THAT(codes, ::testing::Each(testing::kRankPassed));
}

TEST(OpenConnections, RefusesAChangeWhileAnExchangeIsInFlight) {
  run_ranks(2, [](int64_t rank, const Group& group) {
    open_connections(group, 2, flat(group));
    const auto engine = Engine::for_group(group);
    std::promise<void> go;
    const engine::Observer waits{.on_start = [&] { go.get_future().wait(); }};
    const auto future =
        engine->submit(std::make_shared<engine::TwoHops>(0, 1000, rank == 1 ? waits : engine::Observer{}));
    for (const std::optional<int64_t> count : {std::optional<int64_t>(1), std::optional<int64_t>(4), {}}) {
      EXPECT_EQ(testing::error_message<c10::ValueError>([&] { open_connections(group, count, flat(group)); }),
                "opening connections on rank 0: connections: an exchange of the group is in flight");
    }
    if (rank == 1) go.set_value();
    future->waitAndThrow();
    open_connections(group, 4, flat(group));
    expect_exchanges(group, 1000);
  });
}

// As with the group's own connection.
TEST(ProcessesWithConnections, NameALostPeer) {
  const auto codes = testing::fork_ranks(2, [](int64_t rank, const Group& group) {
    open_connections(group, 4, flat(group));
    expect_exchanges(group, 100'000);
    if (rank == 1) ::_exit(0);
    const auto exchange = [&] {
      Engine::for_group(group)->submit(std::make_shared<engine::TwoHops>(0, 100'000))->waitAndThrow();
    };
    EXPECT_THAT(testing::error_message<c10::DistBackendError>(exchange),
                AllOf(HasSubstr("rank 0: exchange 0"), HasSubstr("rank 1")));
  });
  EXPECT_THAT(codes, ::testing::ElementsAre(testing::kRankPassed, 0));
}

TEST(Connections, ARankThatLeavesItsGroupEndsItsPeersWaits) {
  const auto run = [] {
    run_ranks(2, [](int64_t rank, const Group& group) {
      open_connections(group, 4, flat(group));
      if (rank == 1) throw testing::Death();
      const auto exchange = [&] {
        Engine::for_group(group)->submit(std::make_shared<engine::TwoHops>(0, 1000))->waitAndThrow();
      };
      EXPECT_THAT(testing::error_message<c10::DistBackendError>(exchange), HasSubstr("Connection closed by peer"));
    });
  };
  EXPECT_THROW(run(), testing::Death);
}

TEST(Connections, EndWithTheBackendsConnections) {
  run_ranks(2, [](int64_t rank, const Group& group) {
    open_connections(group, 2, flat(group));
    const auto exchange = [&] {
      Engine::for_group(group)->submit(std::make_shared<engine::TwoHops>(0, 1000))->waitAndThrow();
    };
    if (rank == 0) {
      EXPECT_THROW(exchange(), c10::DistBackendError);
    } else {
      close_connections(*group->getBackend(c10::DeviceType::CPU));
    }
  });
}

}  // namespace
}  // namespace narrowcast::connections

// A node is lost that has rank 0 and the launcher that serves the store. Ranks are processes, as those of fork_ranks.
#include <ATen/ATen.h>
#include <ATen/CPUGeneratorImpl.h>
#include <ATen/Parallel.h>
#include <gtest/gtest.h>
#include <torch/nn/modules/linear.h>
#include <torch/optim/adamw.h>
#include <unistd.h>

#include <csignal>
#include <cstdint>
#include <cstdio>
#include <exception>
#include <fstream>
#include <functional>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include <narrowcast/ddp.h>
#include <narrowcast/elastic_group.h>
#include "tests/support/moving_store.h"
#include "tests/support/patience.h"
#include "tests/support/rank_process.h"
#include "trainer/base/files/open_file.h"

namespace narrowcast {
namespace {

using testing::ForkedStore;

constexpr int64_t kSteps = 12;
constexpr int64_t kLastStepOfFirst = 5;  // that rank 0 takes. The buckets are settled before.
constexpr int64_t kRanks = 3;

// A child process that is one rank.
class ForkedRank {
 public:
  explicit ForkedRank(const std::function<void()>& body) {
    std::fflush(nullptr);
    process_ = ::fork();
    if (process_ == 0) be(body);
  }
  ~ForkedRank() {
    if (process_ > 0) {
      ::kill(process_, SIGKILL);
      testing::exit_code_of(process_);
    }
  }
  ForkedRank(const ForkedRank&) = delete;
  ForkedRank& operator=(const ForkedRank&) = delete;

  // Waits for its end.
  int exit_code() { return testing::exit_code_of(std::exchange(process_, -1)); }

 private:
  [[noreturn]] static void be(const std::function<void()>& body) {
    ::prctl(PR_SET_PDEATHSIG, SIGKILL);
    int code = testing::kRankPassed;
    try {
      at::set_num_threads(1);
      body();
    } catch (const std::exception& error) {
      std::fprintf(stderr, "%s\n", error.what());
      code = testing::kRankFailed;
    }
    std::fflush(nullptr);
    ::_exit(code);
  }

  pid_t process_ = -1;
};

// Trains in groups of all ranks. Writes the last rank, the number of ranks and of recoveries, and the parameters.
void train(const WorkerEnv& env, const std::string& result, const std::function<void(int64_t step)>& before_step) {
  at::manual_seed(1);
  torch::nn::Linear model(4, 1);
  torch::optim::AdamW optimizer(model->parameters(), torch::optim::AdamWOptions(0.02));
  ElasticState state;
  state.add("model", *model);
  state.add("optimizer", optimizer);
  ElasticOptions options;
  options.group.timeout = testing::kPatience;
  options.group.on_silence = [](const std::string& why) {
    std::fprintf(stderr, "%s\n", why.c_str());
    ::_exit(testing::kRankFailed);
  };
  ElasticGroup elastic(env, options);
  std::string place;
  elastic.run(
      state,
      [&](const ProcessGroupPtr& group) {
        place = c10::str("rank ", group->getRank(), " of ", group->getSize());
        return DistributedDataParallel(model, group, DdpOptions());
      },
      [&](auto& ddp, int64_t step) {
        before_step(step);
        const int64_t rank = ddp.process_group()->getRank();
        auto generator = at::detail::createCPUGenerator(static_cast<uint64_t>(kRanks * step + rank));
        const at::Tensor inputs = at::randn({8, 4}, generator);
        optimizer.zero_grad();
        ddp.backward((ddp.forward(inputs) - inputs.sum(1, true)).square().mean());
        optimizer.step();
        return step + 1 < kSteps;
      });
  std::ofstream file(result, std::ios::binary);
  file << place << ", recoveries " << elastic.recoveries() << "\n";
  for (const at::Tensor& parameter : model->parameters()) {
    file.write(static_cast<const char*>(parameter.const_data_ptr()), static_cast<std::streamsize>(parameter.nbytes()));
  }
}

// The nodes of a job, each with one rank.
class Nodes {
 public:
  explicit Nodes(int64_t port) : port_(port) {}

  void start(
      int64_t node, const std::function<void(int64_t step)>& before_step = [](int64_t) {}) {
    ranks_.push_back({node, std::make_unique<ForkedRank>(
                                [&, env = file.env(node, port_)] { train(env, result_of(env.node), before_step); })});
  }
  int exit_code_of_first() { return ranks_.front().second->exit_code(); }
  // Expects each rank that still runs, and that is not the first, to end well.
  void expect_success() {
    for (size_t i = has_lost_first ? 1 : 0; i < ranks_.size(); ++i) {
      EXPECT_EQ(ranks_[i].second->exit_code(), testing::kRankPassed) << "node " << ranks_[i].first;
    }
  }
  std::string line(int64_t node) const {
    const std::string text = files::read_file(result_of(node));
    return text.substr(0, text.find('\n'));
  }
  std::string parameters(int64_t node) const {
    const std::string text = files::read_file(result_of(node));
    return text.substr(text.find('\n') + 1);
  }

  const testing::StoreFileOfTest file;
  bool has_lost_first = false;

 private:
  std::string result_of(int64_t node) const { return results_ / std::to_string(node); }

  const int64_t port_;
  const testing::TemporaryFolder results_;
  std::vector<std::pair<int64_t, std::unique_ptr<ForkedRank>>> ranks_;
};

std::string parameters_of_an_undisturbed_run() {
  const ForkedStore store("0 1:1,2:1,3:1");
  Nodes nodes(store.port());
  for (const int64_t node : {1, 2, 3}) nodes.start(node);
  nodes.expect_success();
  EXPECT_EQ(nodes.line(2), "rank 1 of 3, recoveries 0");
  return nodes.parameters(1);
}

enum class Store { kDies, kHangs };

// Node 1 is lost in the middle, with its launcher or while this hangs.
class MovedStoreOfElasticGroup : public ::testing::TestWithParam<Store> {
 protected:
  // Starts the three nodes, and returns when the first is lost.
  void lose_first() {
    nodes_.start(1, [this](int64_t step) {
      if (step > kLastStepOfFirst) {
        ::kill(old_.process(), GetParam() == Store::kDies ? SIGKILL : SIGSTOP);
        ::raise(SIGKILL);
      }
    });
    for (const int64_t node : {2, 3}) nodes_.start(node);
    EXPECT_EQ(nodes_.exit_code_of_first(), 128 + SIGKILL);
    nodes_.has_lost_first = true;
  }

  const ForkedStore old_{"0 1:1,2:1,3:1"};
  Nodes nodes_{old_.port()};
};

TEST_P(MovedStoreOfElasticGroup, TheOtherNodesGoOn) {
  lose_first();
  const ForkedStore moved("1 2:1,3:1");
  nodes_.file.tell(moved.port());
  nodes_.expect_success();
  EXPECT_EQ(nodes_.line(2), "rank 0 of 2, recoveries 1");
  EXPECT_EQ(nodes_.line(3), "rank 1 of 2, recoveries 1");
  EXPECT_EQ(nodes_.parameters(2), nodes_.parameters(3));
}

TEST_P(MovedStoreOfElasticGroup, ANewNodeTakesThePlaceOfTheLostOne) {
  lose_first();
  const ForkedStore moved("1 2:1,3:1,4:1");
  nodes_.file.tell(moved.port());
  nodes_.start(4);
  nodes_.expect_success();
  EXPECT_EQ(nodes_.line(2), "rank 0 of 3, recoveries 1");
  EXPECT_EQ(nodes_.line(3), "rank 1 of 3, recoveries 1");
  EXPECT_EQ(nodes_.line(4), "rank 2 of 3, recoveries 0");
  const std::string expected = parameters_of_an_undisturbed_run();
  for (const int64_t node : {2, 3, 4}) EXPECT_EQ(nodes_.parameters(node), expected) << "node " << node;
}

INSTANTIATE_TEST_SUITE_P(Stores, MovedStoreOfElasticGroup, ::testing::Values(Store::kDies, Store::kHangs),
                         [](const auto& info) { return info.param == Store::kDies ? "dies" : "hangs"; });

class StoreOfElasticGroup : public ::testing::TestWithParam<Store> {};

// Another launcher may take it over, or the launchers end the ranks. Meanwhile their steps need no store.
TEST_P(StoreOfElasticGroup, IsNotNeededForSteps) {
  const ForkedStore old("0 1:1,2:1,3:1");
  Nodes nodes(old.port());
  nodes.start(1, [&](int64_t step) {
    if (step == 1) ::kill(old.process(), GetParam() == Store::kDies ? SIGKILL : SIGSTOP);
  });
  for (const int64_t node : {2, 3}) nodes.start(node);
  nodes.expect_success();
  EXPECT_EQ(nodes.line(1), "rank 0 of 3, recoveries 0");
  EXPECT_EQ(nodes.parameters(1), nodes.parameters(3));
}

INSTANTIATE_TEST_SUITE_P(Stores, StoreOfElasticGroup, ::testing::Values(Store::kDies, Store::kHangs),
                         [](const auto& info) { return info.param == Store::kDies ? "dies" : "hangs"; });

}  // namespace
}  // namespace narrowcast

#include "trainer/ddp/reducer/block_alignment.h"

#include <ATen/ATen.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <torch/nn/modules/container/sequential.h>

#include <map>
#include <optional>
#include <string>
#include <vector>

#include <narrowcast/ddp.h>
#include <narrowcast/gradient_reducer.h>
#include <narrowcast/hooks.h>
#include "tests/support/ranks.h"
#include "tests/trainer/ddp/all/ddp_fixtures.h"

namespace narrowcast {
namespace {

using namespace testing;
using ::testing::ElementsAre;

const hooks::WireOptions kEachRankIsANode{.node_size = 1, .link_gbit = 10, .link_us = 50};

TEST(FilledBlock, IsThatOfWholeBlocks) {
  EXPECT_EQ(kLargestBlock, 256);
  EXPECT_EQ(filled_block(1024), 256);
  EXPECT_EQ(filled_block(384), 128);
  EXPECT_EQ(filled_block(96), 32);
  EXPECT_EQ(filled_block(10), 2);
  EXPECT_EQ(filled_block(1000003), 1);
  EXPECT_EQ(filled_block(0), 256);
}

TEST(AlignedToBlocks, SortsEachBucketByFilledBlocksAndElseLeavesTheOrder) {
  std::vector<at::Tensor> parameters;
  for (const int64_t numel : {10, 128, 64, 512, 3, 64}) parameters.push_back(at::zeros({numel}));
  EXPECT_THAT(aligned_to_blocks({{0, 1, 2, 3, 4, 5}}, parameters), ElementsAre(ElementsAre(3, 1, 2, 5, 0, 4)));
  EXPECT_THAT(aligned_to_blocks({{4, 2}, {}, {5, 3}}, parameters),
              ElementsAre(ElementsAre(2, 4), ElementsAre(), ElementsAre(3, 5)));
}

// Each parameter of each bucket begins at a multiple of its blocks.
void expect_aligned(const BucketNames& buckets, const ModuleState& module, const std::string& when) {
  std::map<std::string, int64_t> numel;
  for (const NamedTensor& parameter : module.parameters) numel[parameter.name] = parameter.tensor.numel();
  for (const std::vector<std::string>& bucket : buckets) {
    int64_t begin = 0;
    for (const std::string& name : bucket) {
      EXPECT_EQ(begin % filled_block(numel.at(name)), 0) << name << " " << when;
      begin += numel.at(name);
    }
  }
}

// In the order of gradients, biases would come before weights.
TEST(BlockAlignmentInDdp, HoldsInEveryStepOfEveryMode) {
  const DdpOptions int8 = DdpOptions().hook("int8").wire(kEachRankIsANode).bucket_cap_mb(25);
  const std::map<std::string, DdpOptions> modes{{"plain", int8},
                                                {"unused", DdpOptions(int8).find_unused_parameters(true)},
                                                {"static", DdpOptions(int8).static_graph(true)},
                                                {"views", DdpOptions(int8).gradient_as_bucket_view(true)},
                                                {"small buckets", DdpOptions(int8).bucket_cap_mb(0.0003)},
                                                {"size left open", DdpOptions(int8).bucket_cap_mb(std::nullopt)}};
  for (const auto& [mode, options] : modes) {
    run_ranks(2, [&](int64_t rank, const ProcessGroupPtr& group) {
      SmallNet net;
      const ModuleState module = module_state(net.ptr());
      GradientReducer reducer(module, group, options);
      for (int64_t step = 0; step < 4; ++step) {
        const Sample sample = sample_of(step, rank);
        reducer.before_forward();
        reducer.zero_grad();
        const at::Tensor output = net->forward(sample.x);
        const at::Tensor used = reducer.after_forward({output}).at(0);
        reducer.backward(loss_of(used, sample));
        if (!options.static_graph() || step > 0) {  // The state of the graph is known after the first step.
          expect_aligned(reducer.state().buckets, module, "of " + mode + " in step " + std::to_string(step));
        }
      }
      EXPECT_TRUE(same_on_all_ranks(group, gradients_in(net->parameters())));
    });
  }
}

// More than 2 MiB, so that the size of buckets is measured; biases are not multiples of 32.
TEST(BlockAlignmentInDdp, HoldsWhereTheSizeOfBucketsIsChosen) {
  for (const bool is_static : {false, true}) {
    run_ranks(2, [&](int64_t rank, const ProcessGroupPtr& group) {
      torch::nn::Sequential net(torch::nn::Linear(64, 10), torch::nn::Linear(10, 9600), torch::nn::Linear(9600, 70));
      const ModuleState module = module_state(net.ptr());
      GradientReducer reducer(
          module, group,
          DdpOptions().hook("int8").wire(kEachRankIsANode).static_graph(is_static).bucket_cap_mb(std::nullopt));
      for (int64_t step = 0; step < 6; ++step) {
        reducer.before_forward();
        reducer.zero_grad();
        const at::Tensor output = net->forward(seeded_randn(static_cast<uint64_t>(10 * step + rank), {2, 64}));
        reducer.backward(reducer.after_forward({output}).at(0).square().mean());
        expect_aligned(reducer.state().buckets, module, "in step " + std::to_string(step));
      }
      EXPECT_TRUE(reducer.bucket_choice().has_value());
      EXPECT_TRUE(same_on_all_ranks(group, gradients_in(net->parameters())));
    });
  }
}

void copy_parameters(const std::vector<at::Tensor>& from, const std::vector<at::Tensor>& to) {
  const at::NoGradGuard no_grad;
  for (size_t i = 0; i < from.size(); ++i) to[i].copy_(from[i]);
}

// The weight of the first layer is one block of int8_b128, both with neighbours in its bucket and alone.
TEST(BlockAlignmentInDdp, BitsOfWholeBlocksDoNotDependOnTheirBucket) {
  std::vector<std::string> bits;
  const SmallNet same;  // Initial parameters of each replica.
  for (const double cap_mb : {1e-5, 25.0}) {
    std::vector<std::string> by_rank(2);
    run_ranks(2, [&](int64_t rank, const ProcessGroupPtr& group) {
      SmallNet net;
      copy_parameters(same->parameters(), net->parameters());
      DistributedDataParallel ddp(net, group, DdpOptions().hook("int8").wire(kEachRankIsANode).bucket_cap_mb(cap_mb));
      for (int64_t step = 0; step < 3; ++step) {
        const Sample sample = sample_of(step, rank);
        ddp.zero_grad();
        ddp.backward(loss_of(ddp.forward(sample.x), sample));
        by_rank[static_cast<size_t>(rank)] += bytes_of({ddp.module()->first->weight.grad()});
      }
    });
    bits.push_back(by_rank[0]);
  }
  EXPECT_TRUE(bits[0] == bits[1]);
}

}  // namespace
}  // namespace narrowcast

// Model packages under DistributedDataParallel.
#include <ATen/ATen.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <functional>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include <narrowcast/ddp.h>
#include <narrowcast/models.h>
#include "tests/models/imported/small_package.h"
#include "tests/support/error_message.h"
#include "tests/support/ranks.h"
#include "tests/support/temporary_folder.h"
#include "tests/trainer/ddp/all/ddp_fixtures.h"

namespace narrowcast::training {
namespace {

using models::Model;
using testing::run_ranks;
using testing::small_batch;

constexpr int64_t kPackageRanks = 2;
constexpr uint64_t kPackageSteps = 5;  // The buckets are rebuilt after the first ones.

models::Batch batch_of(uint64_t step, int64_t rank) { return small_batch(10 * step + static_cast<uint64_t>(rank)); }

using ByName = std::map<std::string, at::Tensor>;

ByName gradients_in(const std::vector<std::pair<std::string, at::Tensor>>& tensors) {
  ByName gradients;
  for (const auto& [name, tensor] : tensors) {
    if (tensor.grad().defined()) gradients[name] = tensor.grad().clone();
  }
  return gradients;
}

ByName mean_of(const std::vector<ByName>& by_rank) {
  ByName mean;
  for (const auto& [name, first] : by_rank[0]) {
    std::vector<at::Tensor> gradients;
    for (const ByName& of_rank : by_rank) gradients.push_back(of_rank.at(name));
    mean[name] = testing::mean_over_ranks(gradients);
  }
  return mean;
}

// Mean gradients of one step without DistributedDataParallel.
struct Means {
  ByName compiled;
  ByName eager;
  double largest = 0;  // magnitude of a rank's gradient
};

class PackageInDdp : public ::testing::Test {
 protected:
  // All ranks begin each step with the buffers of rank 0, as under DistributedDataParallel.
  std::vector<Means> means() const {
    const std::shared_ptr<Model> first = models::load_package(path_);
    std::vector<Means> by_step;
    for (uint64_t step = 0; step < kPackageSteps; ++step) {
      ByName buffers;
      for (const auto& buffer : first->named_buffers()) buffers[buffer.key()] = buffer.value().clone();
      std::vector<ByName> compiled;
      std::vector<ByName> eager;
      Means& means = by_step.emplace_back();
      for (int64_t rank = kPackageRanks - 1; rank >= 0; --rank) {  // The first rank is the last, whose buffers remain.
        const at::NoGradGuard no_grad;
        for (const auto& buffer : first->named_buffers()) at::Tensor(buffer.value()).copy_(buffers.at(buffer.key()));
        compiled.push_back(compiled_gradients(*first, batch_of(step, rank)));
        eager.push_back(eager_gradients(buffers, batch_of(step, rank)));
        for (const auto& [name, gradient] : compiled.back()) {
          means.largest = std::max(means.largest, gradient.abs().max().item<double>());
        }
      }
      means.compiled = mean_of(compiled);
      means.eager = mean_of(eager);
    }
    return by_step;
  }

  // Calls check(step, gradients) on each rank after each step. If the options do not allow unused parameters, the
  // backward pass runs the training step.
  void train(const DdpOptions& options, const std::function<void(size_t step, const ByName& gradients)>& check) const {
    run_ranks(kPackageRanks, [&](int64_t rank, const ProcessGroupPtr& group) {
      const std::shared_ptr<Model> model = load();
      if (!options.find_unused_parameters() && !options.static_graph()) {
        model->named_parameters()["spare"].requires_grad_(false);
        model->compute_loss_in_backward();
      }
      DistributedDataParallel ddp(model, group, options);
      for (uint64_t step = 0; step < kPackageSteps; ++step) {
        ddp.zero_grad();
        ddp.backward(ddp.forward(batch_of(step, rank)));
        check(step, gradients_in(ddp.module()->named_parameters().pairs()));
      }
      EXPECT_EQ(ddp.module()->named_buffers()["steps"].item<int64_t>(), 5 + int64_t{kPackageSteps});
    });
  }

  std::shared_ptr<Model> load() const { return models::load_package(path_); }

 private:
  static ByName compiled_gradients(Model& model, const models::Batch& batch) {
    const at::AutoGradMode grad(true);
    model.zero_grad();
    model.forward(batch).backward();
    return gradients_in(model.named_parameters().pairs());
  }

  ByName eager_gradients(const ByName& buffers, const models::Batch& batch) const {
    const at::AutoGradMode grad(true);
    ByName state = package_.weights;
    std::vector<std::pair<std::string, at::Tensor>> parameters;
    for (auto& [name, tensor] : state) {
      const bool is_buffer = buffers.contains(name);
      tensor = is_buffer ? buffers.at(name) : tensor.detach().clone().requires_grad_(name != "scale");
      if (!is_buffer) parameters.emplace_back(name, tensor);
    }
    testing::eager_loss(state, batch).backward();
    return gradients_in(parameters);
  }

  const testing::TemporaryFolder folder_;
  const testing::SmallPackage package_;
  const std::string path_ = package_.write(folder_ / "net.pt2");
};

// Its graph does not contain the parameters.
TEST_F(PackageInDdp, ALossOfTheBackwardPassIsRefusedWithOptionsThatReadTheGraph) {
  for (const DdpOptions& options : {DdpOptions().find_unused_parameters(true), DdpOptions().static_graph(true)}) {
    run_ranks(kPackageRanks, [&](int64_t rank, const ProcessGroupPtr& group) {
      const std::shared_ptr<Model> model = load();
      model->compute_loss_in_backward();
      DistributedDataParallel ddp(model, group, options);
      EXPECT_THAT(testing::error_message<c10::ValueError>([&] { ddp.forward(batch_of(0, rank)); }),
                  ::testing::StartsWith(
                      "find_unused_parameters and static_graph need the parameters in the autograd graph, but"));
    });
  }
}

// The parameter `spare` is unused and has no gradient. Every other one has the mean.
TEST_F(PackageInDdp, WithoutAHookGradientsAreTheMeansBits) {
  const std::vector<Means> expected = means();
  for (const testing::Mode& mode : testing::all_modes()) {
    train(mode.options, [&](size_t step, const ByName& gradients) {
      ASSERT_EQ(gradients.size(), expected[step].compiled.size()) << mode.name;
      for (const auto& [name, gradient] : gradients) {
        EXPECT_TRUE(gradient.equal(expected[step].compiled.at(name))) << mode.name << ", step " << step << ": " << name;
        EXPECT_TRUE(gradient.allclose(expected[step].eager.at(name), 1e-5, 1e-6))
            << mode.name << ", step " << step << ": " << name;
      }
    });
  }
}

// A number is rounded by at most half a step of its rank's block, and the mean, if it is sent again, by at most half a
// step of its block. A step is at most (1 + 2^-7) / 127 of the largest magnitude (hooks/row/error_bound.h).
TEST_F(PackageInDdp, WithInt8GradientsAreWithinTheHooksBound) {
  const std::vector<Means> expected = means();
  const hooks::WireOptions one_rank_per_node{.node_size = 1, .link_gbit = 10, .link_us = 50};
  const auto check = [&](size_t step, const ByName& gradients) {
    const double bound = expected[step].largest * (1 + 0x1p-7) / 127 * 1.01;
    ASSERT_EQ(gradients.size(), expected[step].eager.size());
    double difference = 0;
    for (const auto& [name, gradient] : gradients) {
      difference = std::max(difference, (gradient - expected[step].eager.at(name)).abs().max().item<double>());
    }
    EXPECT_LE(difference, bound);
    EXPECT_GT(difference, bound / 100) << "gradients are not quantised";
  };
  const DdpOptions options = DdpOptions().hook("int8").wire(one_rank_per_node);
  train(options, check);
  train(DdpOptions(options).find_unused_parameters(true), check);
}

}  // namespace
}  // namespace narrowcast::training

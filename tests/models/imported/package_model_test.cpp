#include "models/imported/package_model.h"

#include <ATen/ATen.h>
#include <ATen/Context.h>
#include <ATen/Parallel.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <stdlib.h>

#include <string>
#include <thread>

#include <narrowcast/models.h>
#include "tests/models/imported/package_gradients.h"
#include "tests/models/imported/small_package.h"
#include "tests/support/temporary_folder.h"

namespace narrowcast::models {
namespace {

using testing::copy_of;
using testing::eager_gradients;
using testing::eager_logits;
using testing::eager_loss;
using ::testing::ElementsAre;
using testing::expect_gradients;
using ::testing::IsEmpty;
using testing::model_of;
using ::testing::Pair;
using testing::small_batch;
using testing::SmallPackage;
using testing::State;
TEST(PackageModel, HasTheModulesNamesAndValues) {
  const SmallPackage package;
  const auto model = model_of(package);
  EXPECT_TRUE(model->is_training());
  EXPECT_THAT(model->named_parameters().keys(),
              ::testing::UnorderedElementsAre("layers.0.weight", "layers.0.shift", "layers.0.bias", "pair.first",
                                              "pair.second", "level", "drift", "spare", "scale"));
  EXPECT_THAT(model->named_buffers().keys(), ::testing::UnorderedElementsAre("steps", "current", "previous", "offset"));
  const State state = copy_of(*model);
  ASSERT_EQ(state.size(), package.weights.size());
  for (const auto& [name, tensor] : package.weights) {
    EXPECT_TRUE(state.at(name).equal(tensor)) << name;
    EXPECT_EQ(state.at(name).requires_grad(), name != "scale" && model->named_parameters().contains(name)) << name;
  }
  EXPECT_THAT(model->aliases(), ElementsAre(Pair("head.weight", "layers.0.weight")));
  EXPECT_THAT(model->transient_buffers(), ElementsAre("current"));
  EXPECT_EQ(model->loss(), Loss::kCrossEntropy);
  EXPECT_EQ(model->classes(), 3);
  EXPECT_EQ(model->manifest().module, "SmallNet");
}

TEST(PackageModel, ATextModelHasAVocabularyAndAContext) {
  SmallPackage package;
  EXPECT_THAT(model_of(package)->vocabulary(), IsEmpty());
  package.manifest["vocabulary"] = {"a", "b", "\u00e4"};
  const auto model = model_of(package);
  EXPECT_THAT(model->vocabulary(), ElementsAre("a", "b", "\u00e4"));
  EXPECT_EQ(model->context(), std::nullopt) << "its inputs are floats, not tokens";
  package.manifest["inputs"]["dtype"] = "I64";
  EXPECT_EQ(model_of(package)->context(), 4);
}

TEST(PackageModel, NothingIsLeftInTheTemporaryFolder) {
  const testing::TemporaryFolder folder;
  const std::string path = SmallPackage().write(folder / "net.pt2");
  const testing::TemporaryFolder unpacked;
  const char* const old = ::getenv("TMPDIR");
  const std::string old_folder = old == nullptr ? "/tmp" : old;
  ::setenv("TMPDIR", unpacked.path().c_str(), 1);
  const auto model = load_package(path);
  ::setenv("TMPDIR", old_folder.c_str(), 1);
  EXPECT_EQ(unpacked.entries(), 0);
  EXPECT_TRUE(model->forward(small_batch(1)).requires_grad()) << "the code is still there";
}

TEST(PackageModel, HasTheLossAndTheGradientsOfEagerPyTorch) {
  const auto model = model_of({});
  for (const int64_t samples : {2, 6, 16}) {
    const Batch batch = small_batch(static_cast<uint64_t>(samples), samples);
    const State state = copy_of(*model);
    model->zero_grad();
    const at::Tensor loss = model->forward(batch);
    EXPECT_TRUE(loss.allclose(eager_loss(state, batch), 1e-5, 1e-6));
    EXPECT_EQ(loss.dim(), 0);
    loss.backward();
    expect_gradients(*model, eager_gradients(state, batch));
  }
}

TEST(PackageModel, BatchesNeedNotBeContiguous) {
  const auto model = model_of({});
  const Batch batch = small_batch(3);
  const State state = copy_of(*model);
  const Batch strided = {.inputs = batch.inputs.t().contiguous().t(),
                         .targets = at::stack({batch.targets, batch.targets}, 1).select(1, 0)};
  ASSERT_FALSE(strided.inputs.is_contiguous() || strided.targets.is_contiguous());
  model->forward(strided).backward();
  expect_gradients(*model, eager_gradients(state, batch));
}

// As a gradient scaler, or a mean over micro-batches, does it.
TEST(PackageModel, GradientsHaveTheFactorOfTheLoss) {
  const auto model = model_of({});
  const Batch batch = small_batch(4);
  const State state = copy_of(*model);
  (model->forward(batch) * 0.5).backward();
  expect_gradients(*model, eager_gradients(state, batch, 0.5));
}

TEST(PackageModel, GradientsAreAddedUp) {
  const auto model = model_of({});
  State sum;
  for (const uint64_t seed : {5, 6}) {
    const Batch batch = small_batch(seed);
    for (const auto& [name, gradient] : eager_gradients(copy_of(*model), batch)) {
      sum[name] = sum.contains(name) ? sum[name] + gradient : gradient;
    }
    model->forward(batch).backward();
  }
  expect_gradients(*model, sum);
}

TEST(PackageModel, TwoPassesMayBeOpenAtOnce) {
  const auto model = model_of({});
  const Batch batches[] = {small_batch(7), small_batch(8)};
  const State before_first = copy_of(*model);
  const at::Tensor first = model->forward(batches[0]);
  const State before_second = copy_of(*model);
  const at::Tensor second = model->forward(batches[1]);
  first.backward();
  expect_gradients(*model, eager_gradients(before_first, batches[0]));
  model->zero_grad();
  second.backward();
  expect_gradients(*model, eager_gradients(before_second, batches[1]));
}

// The graph returns some gradients as one tensor, and others as its inputs.
TEST(PackageModel, GradientsShareNoMemory) {
  const auto model = model_of({});
  model->forward(small_batch(9)).backward();
  testing::expect_separate_memory(*model);
}

// A compiled graph sets LibTorch to deterministic algorithms while it runs.
TEST(PackageModel, ThreadsLeaveLibTorchsSettingsUnchanged) {
  const auto train = [] {
    const auto model = model_of({});
    at::set_num_threads(2);
    for (int step = 0; step < 200; ++step) model->forward(small_batch(1));
  };
  std::thread other(train);
  std::thread another(train);
  other.join();
  another.join();
  EXPECT_FALSE(at::globalContext().deterministicAlgorithms());
  EXPECT_TRUE(at::globalContext().deterministicFillUninitializedMemory());
}

TEST(PackageModel, ParametersCanBeFrozenLater) {
  const auto model = model_of({});
  model->named_parameters()["layers.0.shift"].requires_grad_(false);
  const Batch batch = small_batch(10);
  const State state = copy_of(*model);
  model->forward(batch).backward();
  expect_gradients(*model, eager_gradients(state, batch));
  EXPECT_FALSE(model->named_parameters()["layers.0.shift"].grad().defined());
  for (at::Tensor& parameter : model->parameters()) parameter.requires_grad_(false);
  EXPECT_FALSE(model->forward(batch).requires_grad());
}

TEST(PackageModel, TrainingReadsTheCurrentParameters) {
  const auto model = model_of({});
  {
    const at::NoGradGuard no_grad;
    for (at::Tensor& parameter : model->parameters()) parameter.mul_(0.5).add_(0.25);
  }
  const Batch batch = small_batch(11);
  const State state = copy_of(*model);
  model->forward(batch).backward();
  expect_gradients(*model, eager_gradients(state, batch));
}

TEST(PackageModel, ReportsParametersWithoutGradient) {
  const auto model = model_of({});
  EXPECT_THAT(model->check_trains(small_batch(12)), ElementsAre("spare"));
  for (const at::Tensor& parameter : model->parameters()) {
    EXPECT_FALSE(parameter.grad().defined());
  }
}

// The new value of `previous` is the buffer `current`, which changes in the same step.
TEST(PackageModel, BuffersChangeInTrainingModeOnly) {
  const auto model = model_of({});
  const Batch batch = small_batch(13);
  const State before = copy_of(*model);
  model->eval();
  model->forward(batch);
  model->evaluate(batch);
  model->logits(batch.inputs);
  for (const auto& [name, tensor] : before) {
    EXPECT_TRUE(copy_of(*model).at(name).equal(tensor)) << name;
  }
  model->train();
  const at::Tensor current = model->named_buffers()["current"];
  model->forward(batch);
  {
    const at::NoGradGuard no_grad;
    EXPECT_FALSE(model->forward(batch).requires_grad());
  }
  const State after = copy_of(*model);
  EXPECT_EQ(after.at("steps").item<int64_t>(), before.at("steps").item<int64_t>() + 2);
  EXPECT_TRUE(after.at("current").equal(batch.inputs.mean(0)));
  EXPECT_TRUE(after.at("previous").equal(batch.inputs.mean(0)));
  EXPECT_TRUE(after.at("offset").equal(before.at("offset")));
  EXPECT_TRUE(current.is_same(model->named_buffers()["current"])) << "it is changed in place";
  model->forward(small_batch(14));
  EXPECT_TRUE(model->named_buffers()["previous"].equal(batch.inputs.mean(0)));
  EXPECT_FALSE(model->named_buffers()["current"].equal(batch.inputs.mean(0)));
}

TEST(PackageModel, EvaluationGivesLossAndAccuracy) {
  const auto model = model_of({});
  model->eval();
  const Batch batch = small_batch(15, 32);
  const State state = copy_of(*model);
  const at::Tensor logits = eager_logits(state, batch.inputs).detach();
  const Evaluated evaluated = model->evaluate(batch);
  EXPECT_TRUE(evaluated.loss.allclose(eager_loss(state, batch), 1e-5, 1e-6));
  EXPECT_FALSE(evaluated.loss.requires_grad());
  EXPECT_EQ(evaluated.accuracy.item<double>(),
            logits.argmax(1).eq(batch.targets).to(at::kDouble).mean().item<double>());
  EXPECT_TRUE(model->forward(batch).equal(evaluated.loss));
  EXPECT_FALSE(model->forward(batch).requires_grad());
  EXPECT_TRUE(model->logits(batch.inputs).allclose(logits, 1e-5, 1e-6));
}

TEST(PackageModel, ALossOfValuesHasNoAccuracy) {
  SmallPackage package;
  package.take_values("mse");
  const auto model = model_of(package);
  EXPECT_EQ(model->classes(), std::nullopt);
  Batch batch = small_batch(16);
  batch.targets = at::ones({6, 3});
  const State state = copy_of(*model);
  model->forward(batch).backward();
  expect_gradients(*model, eager_gradients(state, batch));
  const Evaluated evaluated = model->evaluate(batch);
  EXPECT_FALSE(evaluated.accuracy.defined());
  EXPECT_TRUE(evaluated.loss.allclose(eager_loss(copy_of(*model), batch), 1e-5, 1e-6));
}

}  // namespace
}  // namespace narrowcast::models

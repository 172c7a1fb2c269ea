// Batches that a package does not take, and packages whose code fails.
#include <ATen/ATen.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <functional>
#include <limits>
#include <memory>
#include <ostream>
#include <string>

#include <narrowcast/models.h>
#include "models/imported/package_model.h"
#include "tests/models/imported/small_package.h"
#include "tests/support/error_message.h"
#include "tests/support/temporary_folder.h"

namespace narrowcast::models {
namespace {

using testing::error_message;
using ::testing::HasSubstr;
using testing::Records;
using testing::small_batch;
using testing::SmallPackage;
using ::testing::StartsWith;
using testing::write_archive;

// Its messages begin with "net.pt2".
PackageModel model_named_net(const SmallPackage& package) {
  const testing::TemporaryFolder folder;
  return PackageModel(read_package(package.write(folder / "net.pt2")), "net.pt2");
}

struct WrongBatch {
  const char* name;
  std::function<void(Batch& batch)> change;
  const char* message;  // the error's after "net.pt2: "
};

void PrintTo(const WrongBatch& wrong, std::ostream* out) { *out << wrong.name; }

class WrongBatchTest : public ::testing::TestWithParam<WrongBatch> {};

// It is an error of both graphs, and changes nothing.
TEST_P(WrongBatchTest, IsAnErrorThatNamesTheFaultInBothModes) {
  PackageModel model = model_named_net({});
  Batch batch = small_batch(1);
  GetParam().change(batch);
  const std::string expected = std::string("net.pt2: ") + GetParam().message;
  EXPECT_EQ(error_message<c10::ValueError>([&] { model.forward(batch); }), expected);
  EXPECT_EQ(error_message<c10::ValueError>([&] { model.evaluate(batch); }), expected);
  EXPECT_EQ(model.named_buffers()["steps"].item<int64_t>(), 5);
}

INSTANTIATE_TEST_SUITE_P(
    Values, WrongBatchTest,
    ::testing::Values(WrongBatch{"inputs of another shape",
                                 [](Batch& batch) {
                                   batch.inputs = at::zeros({6, 5});
                                 },
                                 "takes inputs of Float with [4] for each sample, but the data has Float with [5]"},
                      WrongBatch{"inputs with another dimension",
                                 [](Batch& batch) {
                                   batch.inputs = at::zeros({6, 2, 2});
                                 },
                                 "takes inputs of Float with [4] for each sample, but the data has Float with [2, 2]"},
                      WrongBatch{"inputs of another dtype",
                                 [](Batch& batch) { batch.inputs = batch.inputs.to(at::kDouble); },
                                 "takes inputs of Float with [4] for each sample, but the data has Double with [4]"},
                      WrongBatch{"one number as inputs", [](Batch& batch) { batch.inputs = at::zeros({}); },
                                 "takes inputs of Float with [4] for each sample, but the data has Float with []"},
                      WrongBatch{"targets of another shape",
                                 [](Batch& batch) {
                                   batch.targets = at::zeros({6, 1}, at::kLong);
                                 },
                                 "takes targets of Long with [] for each sample, but the data has Long with [1]"},
                      WrongBatch{"targets of another dtype",
                                 [](Batch& batch) { batch.targets = at::zeros({6}, at::kInt); },
                                 "takes targets of Long with [] for each sample, but the data has Int with []"},
                      WrongBatch{"fewer targets", [](Batch& batch) { batch.targets = at::zeros({5}, at::kLong); },
                                 "got 6 inputs, but 5 targets"},
                      WrongBatch{"a class above all logits", [](Batch& batch) { batch.targets[2] = 3; },
                                 "returns logits for 3 classes, but the data has a target 3"}));

TEST(PackageModelErrors, NegativeClassesAreErrors) {
  PackageModel model = model_named_net({});
  Batch batch = small_batch(2);
  batch.targets[0] = -1;
  EXPECT_EQ(error_message<c10::ValueError>([&] { model.forward(batch); }),
            "loss: cross_entropy needs classes from 0 as targets, but the data has a target -1");
}

// A package whose inputs, float32 [B, 4], have a range at every second element. Of the classes 0, 1 and 2, the last one
// is ignored.
SmallPackage package_with_ranges() {
  SmallPackage package;
  package.manifest["loss"] = "custom";
  package.manifest["inputs"]["ranges"] = {{{"least", -2}, {"most", 4}, {"ignored", nullptr}, {"slices", {{1, 4, 2}}}}};
  package.manifest["targets"]["ranges"] = {
      {{"least", 0}, {"most", 1}, {"ignored", 2}, {"slices", nlohmann::json::array()}}};
  return package;
}

TEST(PackageModelErrors, IndicesHaveRanges) {
  PackageModel model = model_named_net(package_with_ranges());
  const auto error_of = [&](float value, int64_t column) {
    Batch batch = small_batch(2);
    batch.inputs.fill_(0);
    batch.inputs.select(1, column)[5] = value;
    return error_message<c10::ValueError>([&] { model.forward(batch); });
  };
  EXPECT_EQ(error_of(4.75, 1), "nothing was thrown") << "the code takes its integer part";
  EXPECT_EQ(error_of(-2, 3), "nothing was thrown");
  EXPECT_EQ(error_of(99, 0), "nothing was thrown");
  EXPECT_EQ(error_of(99, 2), "nothing was thrown");
  const std::string start = "net.pt2: takes inputs at [1:4:2] of each sample in -2..4, but the data has ";
  EXPECT_EQ(error_of(5, 1), start + "0 to 5");
  EXPECT_EQ(error_of(-3, 3), start + "-3 to 0");
  EXPECT_THAT(error_of(std::numeric_limits<float>::quiet_NaN(), 3), StartsWith(start));
}

TEST(PackageModelErrors, ClassesThatTheLossIgnoresAreValid) {
  PackageModel model = model_named_net(package_with_ranges());
  Batch batch = small_batch(2);
  batch.targets[0] = 2;
  batch.targets[1] = 1;
  EXPECT_NO_THROW(model.forward(batch));
  batch.targets[2] = -1;
  EXPECT_EQ(error_message<c10::ValueError>([&] { model.forward(batch); }),
            "net.pt2: takes targets in 0..1 or 2, but the data has -1 to 1");
}

TEST(PackageModelErrors, FrozenParametersCannotBeTrained) {
  PackageModel model = model_named_net({});
  for (const at::Tensor& parameter : model.parameters()) at::Tensor(parameter).requires_grad_(false);
  EXPECT_EQ(error_message<c10::ValueError>([&] { model.check_trains(small_batch(2)); }),
            "net.pt2: none of its 9 parameters requires a gradient: there is nothing to train");
}

TEST(PackageModelErrors, ExpectedClassesAreComparedWithTheLogits) {
  PackageModel model = model_named_net({});
  model.expect_classes(3);
  EXPECT_NO_THROW(model.forward(small_batch(2)));
  model.expect_classes(4);
  EXPECT_EQ(error_message<c10::ValueError>([&] { model.forward(small_batch(2)); }),
            "net.pt2: returns logits for 3 classes, but the data needs 4");
}

TEST(PackageModelErrors, TargetsOfProbabilitiesMustBeInTheirRange) {
  SmallPackage package;
  package.take_values("bce_with_logits");
  PackageModel model = model_named_net(package);
  Batch batch = small_batch(3);
  batch.targets = at::full({6, 3}, 1.5);
  EXPECT_EQ(error_message<c10::ValueError>([&] { model.forward(batch); }),
            "loss: bce_with_logits needs targets in 0..1, but the data has targets from 1.5 to 1.5");
}

// The training step takes from 2 to 16 samples, the evaluation from 1 to 32.
TEST(PackageModelErrors, EachGraphTakesItsRangeOfSamples) {
  PackageModel model = model_named_net({});
  const auto error_of = [&](int64_t samples) {
    return error_message<c10::ValueError>([&] { model.forward(small_batch(4, samples)); });
  };
  EXPECT_EQ(error_of(1),
            "net.pt2: takes from 2 to 16 samples at once, but got 1; --batch_size is the number of all ranks "
            "together");
  EXPECT_THAT(error_of(17), StartsWith("net.pt2: takes from 2 to 16 samples at once, but got 17"));
  EXPECT_EQ(error_of(16), "nothing was thrown");
  model.eval();
  EXPECT_EQ(model.evaluated_sizes().least, 1);
  EXPECT_EQ(model.evaluated_sizes().most, 32);
  EXPECT_EQ(error_of(1), "nothing was thrown");
  EXPECT_EQ(error_of(32), "nothing was thrown");
  EXPECT_THAT(error_of(33), StartsWith("net.pt2: takes from 1 to 32 samples at once, but got 33"));
  EXPECT_THAT(error_message<c10::ValueError>([&] {
                model.logits(at::zeros({33, 4}));
              }),
              StartsWith("net.pt2: takes from 1 to 32 samples at once, but got 33"));
}

TEST(PackageModelErrors, OnlyClassifiersHaveLogits) {
  SmallPackage package;
  package.take_values("mse");
  PackageModel model = model_named_net(package);
  EXPECT_EQ(error_message<c10::ValueError>([&] { model.logits(at::zeros({6, 4})); }), "net.pt2: returns no logits");
}

TEST(PackageModelErrors, ABackwardPassRunsOnce) {
  PackageModel model = model_named_net({});
  const at::Tensor loss = model.forward(small_batch(5));
  loss.backward({}, /*retain_graph=*/true);
  const at::Tensor gradient = model.named_parameters()["level"].grad().clone();
  EXPECT_THAT(error_message<c10::Error>([&] { loss.backward(); }),
              HasSubstr("the backward pass of a compiled training step can run only once"));
  EXPECT_TRUE(model.named_parameters()["level"].grad().equal(gradient));
}

TEST(PackageModelErrors, FailuresOfTheCompiledCodeAreErrors) {
  SmallPackage package;
  package.train = "fail";
  package.evaluate = "fail";
  PackageModel model = model_named_net(package);
  ::testing::internal::CaptureStderr();
  const std::string of_training = error_message<c10::ValueError>([&] { model.forward(small_batch(6)); });
  const std::string of_evaluation = error_message<c10::ValueError>([&] { model.evaluate(small_batch(6)); });
  EXPECT_THAT(::testing::internal::GetCapturedStderr(), HasSubstr("Error: this graph fails"));
  EXPECT_THAT(of_training,
              StartsWith("net.pt2: its training step failed; AOTInductor's message is on this rank's stderr: "));
  EXPECT_THAT(of_evaluation,
              StartsWith("net.pt2: its evaluation failed; AOTInductor's message is on this rank's stderr: "));
  EXPECT_EQ(model.named_buffers()["steps"].item<int64_t>(), 5);
}

TEST(PackageModelErrors, CodeThatReturnsFewerTensorsIsAnError) {
  SmallPackage package;
  package.train = "short";
  PackageModel model = model_named_net(package);
  EXPECT_EQ(error_message<c10::ValueError>([&] { model.forward(small_batch(7)); }),
            "net.pt2: its code returns 18 tensors, but its manifest lists 19");
}

// An error of the path, from the file to the loaded code.
TEST(PackageModelErrors, CodeThatCannotBeLoadedIsAnError) {
  const testing::TemporaryFolder folder;
  Records records = SmallPackage().records();
  records["data/aotinductor/evaluate/small.wrapper.so"] = "not a library";
  const std::string path = write_archive(folder / "net.pt2", records);
  EXPECT_THAT(error_message<c10::ValueError>([&] { load_package(path); }),
              StartsWith(path + ": its evaluation: cannot be loaded: "));
}

}  // namespace
}  // namespace narrowcast::models

#include "models/imported/package_manifest.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <torch/version.h>

#include <nlohmann/json.hpp>
#include <ostream>
#include <random>
#include <string>

#include <narrowcast/errors.h>
#include "tests/models/imported/small_package.h"
#include "tests/support/error_message.h"

namespace narrowcast::models {
namespace {

using ::testing::ElementsAre;
using testing::error_message;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using ::testing::Pair;
using testing::SmallPackage;
using ::testing::StartsWith;
using Role = PackagedTensor::Role;

PackageManifest small_manifest() { return parse_manifest(SmallPackage().manifest_text(), "net.pt2"); }

TEST(PackageManifest, HasTheContentOfTheFile) {
  const PackageManifest manifest = small_manifest();
  EXPECT_EQ(manifest.module, "SmallNet");
  EXPECT_EQ(manifest.torch, TORCH_VERSION "+cpu");
  EXPECT_EQ(manifest.device, "cpu");
  EXPECT_EQ(manifest.loss, "cross_entropy");
  EXPECT_EQ(manifest.label_smoothing, 0);
  EXPECT_THAT(manifest.vocabulary, IsEmpty());
  EXPECT_THAT(manifest.inputs.sample_shape, ElementsAre(4));
  EXPECT_EQ(manifest.inputs.dtype, c10::kFloat);
  EXPECT_THAT(manifest.targets.sample_shape, IsEmpty());
  EXPECT_EQ(manifest.targets.dtype, c10::kLong);
  EXPECT_THAT(manifest.tied, ElementsAre(Pair("head.weight", "layers.0.weight")));
  EXPECT_EQ(manifest.weights_record, "narrowcast/weights.safetensors");
  EXPECT_EQ(manifest.weights_bytes, std::ssize(testing::safetensors_of(SmallPackage().weights)));
}

TEST(PackageManifest, HasTheState) {
  const PackageManifest manifest = small_manifest();
  ASSERT_EQ(manifest.state.size(), 13U);
  const PackagedTensor& weight = manifest.state[0];
  EXPECT_EQ(weight.name, "layers.0.weight");
  EXPECT_EQ(weight.role, Role::kTrained);
  EXPECT_THAT(weight.shape, ElementsAre(3, 4));
  EXPECT_EQ(weight.dtype, c10::kFloat);
  for (const PackagedTensor& tensor : manifest.state) {
    EXPECT_EQ(tensor.is_unused, tensor.name == "spare") << tensor.name;
    EXPECT_EQ(tensor.is_persistent, tensor.name != "current") << tensor.name;
  }
  EXPECT_EQ(manifest.state[8].role, Role::kFrozen);
  EXPECT_EQ(manifest.state[9].role, Role::kBuffer);
  EXPECT_THAT(manifest.state[9].shape, IsEmpty());
  EXPECT_EQ(manifest.state[9].dtype, c10::kLong);
}

TEST(PackageManifest, HasBothGraphs) {
  const PackageManifest manifest = small_manifest();
  EXPECT_EQ(manifest.train.least_batch, 2);
  EXPECT_EQ(manifest.train.most_batch, 16);
  EXPECT_THAT(manifest.train.gradients, ElementsAre("layers.0.weight", "layers.0.shift", "layers.0.bias", "pair.first",
                                                    "pair.second", "level", "drift", "spare"));
  EXPECT_THAT(manifest.train.buffers, ElementsAre("steps", "current", "previous"));
  EXPECT_THAT(manifest.train.signals,
              ElementsAre(Pair("drift", true), Pair("layers.0.bias", false), Pair("layers.0.shift", true),
                          Pair("layers.0.weight", true), Pair("level", true), Pair("pair.first", true),
                          Pair("pair.second", true)));
  EXPECT_FALSE(manifest.train.outputs.has_value());
  EXPECT_EQ(manifest.evaluate.least_batch, 1);
  EXPECT_EQ(manifest.evaluate.most_batch, 32);
  EXPECT_THAT(manifest.evaluate.gradients, IsEmpty());
  EXPECT_THAT(manifest.evaluate.buffers, IsEmpty());
  ASSERT_TRUE(manifest.evaluate.outputs.has_value());
  EXPECT_THAT(*manifest.evaluate.outputs, ElementsAre(-1, 3));
}

TEST(PackageManifest, OtherModelsHaveOtherParts) {
  SmallPackage package;
  package.manifest["label_smoothing"] = 0.25;
  package.manifest["vocabulary"] = {"a", "\u00e4"};
  package.manifest["a key of a later version"] = {{"format", 2}};
  package.state("spare")["a key of a later version"] = nullptr;
  PackageManifest manifest = parse_manifest(package.manifest_text(), "net.pt2");
  EXPECT_EQ(manifest.label_smoothing, 0.25);
  EXPECT_THAT(manifest.vocabulary, ElementsAre("a", "\u00e4"));
  package.manifest["loss"] = "module";
  package.manifest["graphs"]["evaluate"]["outputs"].erase(1);
  package.manifest.erase("label_smoothing");
  package.state("level").erase("unused");
  package.state("current").erase("persistent");
  manifest = parse_manifest(package.manifest_text(), "net.pt2");
  EXPECT_EQ(manifest.loss, "module");
  EXPECT_FALSE(manifest.evaluate.outputs.has_value());
  EXPECT_FALSE(manifest.state[5].is_unused);
  EXPECT_TRUE(manifest.state[10].is_persistent);
}

TEST(PackageManifest, HasTheRangesOfIndices) {
  SmallPackage package;
  package.manifest["inputs"]["ranges"] = nlohmann::json::parse(
      R"([{"least": -5, "most": 4, "ignored": null, "slices": [[1, 4, 2]]},
          {"least": 0, "most": 2, "ignored": -100, "slices": [[0, 1, 1]]}])");
  const PackageManifest manifest = parse_manifest(package.manifest_text(), "net.pt2");
  ASSERT_EQ(manifest.inputs.ranges.size(), 2U);
  const PackagedRange& first = manifest.inputs.ranges[0];
  EXPECT_EQ(first.least, -5);
  EXPECT_EQ(first.most, 4);
  EXPECT_FALSE(first.ignored.has_value());
  ASSERT_EQ(first.slices.size(), 1U);
  EXPECT_EQ(first.slices[0].begin, 1);
  EXPECT_EQ(first.slices[0].end, 4);
  EXPECT_EQ(first.slices[0].step, 2);
  EXPECT_EQ(manifest.inputs.ranges[1].ignored, -100);
  EXPECT_THAT(manifest.targets.ranges, IsEmpty());
}

TEST(PackageManifest, SizesThatFollowFromTheBatchAreOpen) {
  SmallPackage package;
  package.manifest["loss"] = "custom";
  package.manifest["graphs"]["evaluate"]["outputs"][1]["shape"] = {nullptr, 3, "batch"};
  EXPECT_THAT(*parse_manifest(package.manifest_text(), "net.pt2").evaluate.outputs, ElementsAre(-1, 3, -1));
}

struct InvalidManifest {
  const char* operation;  // of JSON Patch (RFC 6902) on the valid manifest
  const char* message;    // the error's after "net.pt2: its manifest "
};

void PrintTo(const InvalidManifest& invalid, std::ostream* out) { *out << invalid.operation; }

class InvalidManifestTest : public ::testing::TestWithParam<InvalidManifest> {};

TEST_P(InvalidManifestTest, IsAnErrorThatNamesTheFileAndTheFault) {
  const auto operation = nlohmann::json::parse(GetParam().operation);
  const std::string text =
      nlohmann::json::parse(SmallPackage().manifest_text()).patch(nlohmann::json::array({operation})).dump();
  const std::string message = error_message<CorruptInputError>([&] { parse_manifest(text, "net.pt2"); });
  EXPECT_EQ(message, std::string("net.pt2: its manifest ") + GetParam().message);
}

INSTANTIATE_TEST_SUITE_P(
    Values, InvalidManifestTest,
    ::testing::Values(
        InvalidManifest{R"({"op": "remove", "path": "/format"})", "is invalid: 'format' is missing"},
        InvalidManifest{R"({"op": "replace", "path": "", "value": [1]})", "is invalid: cannot use at() with array"},
        InvalidManifest{R"({"op": "replace", "path": "/format", "value": 2})",
                        "has the format 2, but this program reads 1"},
        InvalidManifest{R"({"op": "replace", "path": "/format", "value": 1.5})", "has an invalid format: 1.5"},
        InvalidManifest{R"({"op": "replace", "path": "/module", "value": ""})", "has an empty module"},
        InvalidManifest{R"({"op": "remove", "path": "/torch"})", "is invalid: 'torch' is missing"},
        InvalidManifest{R"({"op": "replace", "path": "/machine", "value": 64})",
                        "is invalid: a value must be string, but is number"},
        InvalidManifest{R"({"op": "replace", "path": "/loss", "value": "hinge"})", "has the unknown loss hinge"},
        InvalidManifest{R"({"op": "replace", "path": "/loss", "value": "module"})",
                        "has the loss module, which does not fit its evaluation's outputs"},
        InvalidManifest{R"({"op": "replace", "path": "/label_smoothing", "value": 1})",
                        "has an invalid label_smoothing: 1"},
        InvalidManifest{R"({"op": "replace", "path": "/label_smoothing", "value": -0.5})",
                        "has an invalid label_smoothing: -0.5"},
        InvalidManifest{R"({"op": "replace", "path": "/vocabulary", "value": [1]})",
                        "is invalid: a value must be string, but is number"},
        InvalidManifest{R"({"op": "replace", "path": "/weights/bytes", "value": 1e300})",
                        "has an invalid bytes: 1e+300"},
        InvalidManifest{R"({"op": "replace", "path": "/weights/bytes", "value": 18446744073709551615})",
                        "has an invalid bytes: 18446744073709551615"},
        InvalidManifest{R"({"op": "replace", "path": "/weights/record", "value": ""})", "has an empty record"}));

INSTANTIATE_TEST_SUITE_P(
    Batches, InvalidManifestTest,
    ::testing::Values(InvalidManifest{R"({"op": "replace", "path": "/inputs/shape", "value": []})",
                                      "has an input whose first size alone should be 'batch': []"},
                      InvalidManifest{R"({"op": "replace", "path": "/inputs/shape", "value": [32, 4]})",
                                      "has an input whose first size alone should be 'batch': [32,4]"},
                      InvalidManifest{R"({"op": "replace", "path": "/targets/shape", "value": ["batch", "batch"]})",
                                      "has an input whose first size alone should be 'batch': [\"batch\",\"batch\"]"},
                      InvalidManifest{R"({"op": "replace", "path": "/inputs/shape", "value": ["samples", 4]})",
                                      "has an invalid size: \"samples\""},
                      InvalidManifest{R"({"op": "replace", "path": "/inputs/shape", "value": ["batch", 4.5]})",
                                      "has an invalid size: 4.5"},
                      InvalidManifest{R"({"op": "replace", "path": "/inputs/dtype", "value": "F31"})",
                                      "has an unknown dtype: F31"},
                      InvalidManifest{R"({"op": "replace", "path": "/graphs/train/batch/min", "value": 0})",
                                      "has an invalid range of batch sizes: {\"max\":16,\"min\":0}"},
                      InvalidManifest{R"({"op": "replace", "path": "/graphs/train/batch/max", "value": 1})",
                                      "has an invalid range of batch sizes: {\"max\":1,\"min\":2}"},
                      InvalidManifest{R"({"op": "replace", "path": "/graphs/train/batch/max", "value": 1e300})",
                                      "has an invalid max: 1e+300"}));

INSTANTIATE_TEST_SUITE_P(
    Ranges, InvalidManifestTest,
    ::testing::Values(
        InvalidManifest{R"({"op": "add", "path": "/inputs/ranges", "value": [{"least": 0, "most": 1}]})",
                        "is invalid: 'ignored' is missing"},
        InvalidManifest{
            R"({"op": "add", "path": "/targets/ranges", "value": [{"least": 2, "most": 1, "ignored": null, "slices": []}]})",
            "has an invalid range: {\"ignored\":null,\"least\":2,\"most\":1,\"slices\":[]}"},
        InvalidManifest{
            R"({"op": "add", "path": "/inputs/ranges", "value": [{"least": 0, "most": 1, "ignored": null, "slices": []}]})",
            "has an invalid range: {\"ignored\":null,\"least\":0,\"most\":1,\"slices\":[]}"},
        InvalidManifest{
            R"({"op": "add", "path": "/inputs/ranges", "value": [{"least": 0, "most": 1, "ignored": 2.5, "slices": []}]})",
            "has an invalid ignored: 2.5"},
        InvalidManifest{
            R"({"op": "add", "path": "/inputs/ranges", "value": [{"least": 0, "most": 1, "ignored": null, "slices": [[0, 5, 1]]}]})",
            "has an invalid slice: [0,5,1]"},
        InvalidManifest{
            R"({"op": "add", "path": "/inputs/ranges", "value": [{"least": 0, "most": 1, "ignored": null, "slices": [[2, 2, 1]]}]})",
            "has an invalid slice: [2,2,1]"},
        InvalidManifest{
            R"({"op": "add", "path": "/inputs/ranges", "value": [{"least": 0, "most": 1, "ignored": null, "slices": [[0, 2, 0]]}]})",
            "has an invalid slice: [0,2,0]"},
        InvalidManifest{
            R"({"op": "add", "path": "/inputs/ranges", "value": [{"least": 0, "most": 1, "ignored": null, "slices": [[0, 2, 3]]}]})",
            "has an invalid slice: [0,2,3]"},
        InvalidManifest{
            R"({"op": "add", "path": "/inputs/ranges", "value": [{"least": 0, "most": 1, "ignored": null, "slices": [[0, 2]]}]})",
            "has an invalid slice: [0,2]"},
        InvalidManifest{
            R"({"op": "add", "path": "/inputs/ranges", "value": [{"least": 0, "most": 1, "ignored": null, "slices": [[-1, 2, 1]]}]})",
            "has an invalid size: -1"}));

INSTANTIATE_TEST_SUITE_P(
    State, InvalidManifestTest,
    ::testing::Values(
        InvalidManifest{R"({"op": "replace", "path": "/state/0/role", "value": "parameter"})",
                        "has a tensor of the unknown role parameter"},
        InvalidManifest{R"({"op": "replace", "path": "/state/0/dtype", "value": "F64"})",
                        "has the trained parameter layers.0.weight of another dtype than F32"},
        InvalidManifest{R"({"op": "replace", "path": "/state/0/shape", "value": ["batch", 4]})",
                        "has an invalid size: \"batch\""},
        InvalidManifest{R"({"op": "replace", "path": "/state/0/shape", "value": [-3, 4]})", "has an invalid size: -3"},
        InvalidManifest{R"({"op": "replace", "path": "/state/0/shape", "value": [4611686018427387904, 4]})",
                        "has a tensor that is too large: layers.0.weight"},
        InvalidManifest{R"({"op": "replace", "path": "/state/0/shape", "value": 3})", "has an invalid shape: 3"},
        InvalidManifest{R"({"op": "replace", "path": "/state/0/unused", "value": "no"})",
                        "is invalid: a value must be boolean, but is string"},
        InvalidManifest{R"({"op": "replace", "path": "/state/0/name", "value": ""})",
                        "has a tensor of the invalid name ''"},
        InvalidManifest{R"({"op": "replace", "path": "/state/0/name", "value": "layers..weight"})",
                        "has a tensor of the invalid name 'layers..weight'"},
        InvalidManifest{R"({"op": "replace", "path": "/state/9/name", "value": "steps."})",
                        "has a tensor of the invalid name 'steps.'"},
        InvalidManifest{R"({"op": "replace", "path": "/state/9/name", "value": "spare"})", "has two tensors spare"},
        InvalidManifest{R"({"op": "replace", "path": "/tied/head.weight", "value": "head.bias"})",
                        "has the invalid tied tensor head.weight"},
        InvalidManifest{R"({"op": "add", "path": "/tied/spare", "value": "level"})",
                        "has the invalid tied tensor spare"},
        InvalidManifest{R"({"op": "add", "path": "/tied/.x", "value": "level"})",
                        "has a tensor of the invalid name '.x'"}));

INSTANTIATE_TEST_SUITE_P(
    Graphs, InvalidManifestTest,
    ::testing::Values(
        InvalidManifest{R"({"op": "replace", "path": "/graphs/train/outputs", "value": []})",
                        "has a graph that does not return its loss first"},
        InvalidManifest{R"({"op": "remove", "path": "/graphs/evaluate/outputs/0"})",
                        "has a graph that does not return its loss first"},
        InvalidManifest{R"({"op": "remove", "path": "/graphs/train/outputs/1"})",
                        "has a training step whose gradients are not those of the trained parameters"},
        InvalidManifest{R"({"op": "replace", "path": "/graphs/train/outputs/1/name", "value": "level"})",
                        "has a training step whose gradients are not those of the trained parameters"},
        InvalidManifest{R"({"op": "move", "from": "/graphs/train/outputs/9", "path": "/graphs/train/outputs/1"})",
                        "has a gradient after buffers or signals"},
        InvalidManifest{R"({"op": "move", "from": "/graphs/train/outputs/12", "path": "/graphs/train/outputs/11"})",
                        "has a buffer after signals"},
        InvalidManifest{R"({"op": "remove", "path": "/graphs/train/outputs/12"})",
                        "has a training step that does not report the gradient of drift"},
        InvalidManifest{
            R"({"op": "add", "path": "/graphs/train/outputs/-", "value": {"role": "signal", "name": "spare"}})",
            "has a training step that reports the gradient of spare"},
        InvalidManifest{
            R"({"op": "add", "path": "/graphs/train/outputs/-", "value": {"role": "signal", "name": "level"}})",
            "has two signals of level"},
        InvalidManifest{R"({"op": "add", "path": "/graphs/train/outputs/-", "value": {"role": "signal", "name": "x"}})",
                        "has a training step that reports the gradient of the unknown tensor x"},
        InvalidManifest{R"({"op": "replace", "path": "/graphs/train/outputs/9/name", "value": "scale"})",
                        "has a training step that changes scale, which is not a buffer"},
        InvalidManifest{R"({"op": "replace", "path": "/graphs/train/outputs/9/role", "value": "state"})",
                        "has a graph with an output of the role state"},
        InvalidManifest{
            R"({"op": "add", "path": "/graphs/train/outputs/-", "value": {"role": "outputs", "shape": []}})",
            "has graphs that return tensors of unexpected roles"},
        InvalidManifest{
            R"({"op": "add", "path": "/graphs/evaluate/outputs/-", "value": {"role": "buffer", "name": "steps"}})",
            "has graphs that return tensors of unexpected roles"},
        InvalidManifest{
            R"({"op": "add", "path": "/graphs/evaluate/outputs/-", "value": {"role": "outputs", "shape": []}})",
            "has a graph with an output of the role outputs"},
        InvalidManifest{R"({"op": "replace", "path": "/graphs/evaluate/outputs/1/shape", "value": ["batch", null]})",
                        "has outputs without a fixed number of classes"},
        InvalidManifest{R"({"op": "replace", "path": "/graphs/evaluate/outputs/1/shape", "value": ["batch"]})",
                        "has outputs without a fixed number of classes"},
        InvalidManifest{R"({"op": "remove", "path": "/graphs/evaluate"})", "is invalid: 'evaluate' is missing"}));

TEST(PackageManifest, TextThatIsNotJsonIsAnError) {
  EXPECT_THAT(error_message<CorruptInputError>([] { parse_manifest("{", "net.pt2"); }),
              StartsWith("net.pt2: its manifest: is not valid JSON"));
}

std::string refusal_of(const PackageManifest& manifest) {
  return error_message<c10::ValueError>([&] { check_runs_here(manifest, "net.pt2"); });
}

TEST(PackageManifest, PackagesForOtherMachinesAreRefused) {
  const PackageManifest here = small_manifest();
  EXPECT_NO_THROW(check_runs_here(here, "net.pt2"));
  PackageManifest other = here;
  other.device = "cuda";
  EXPECT_EQ(refusal_of(other), "net.pt2: is compiled for the device cuda; only packages for CPUs can be trained");
  other = here;
  other.machine = "pdp11";
  EXPECT_EQ(refusal_of(other), "net.pt2: is compiled for pdp11, but this machine is " + here.machine);
  other = here;
  other.instruction_set = "AVX1024";
  EXPECT_EQ(
      refusal_of(other),
      "net.pt2: is compiled for AVX1024, which this processor lacks; export it with instruction_set=\"AVX2\", or on "
      "this machine");
}

TEST(PackageManifest, PackagesOfANewerTorchAreRefusedAndOlderOnesAreDoubted) {
  const std::string here = TORCH_VERSION;
  PackageManifest manifest = small_manifest();
  for (const std::string& same : {here, here + "+cu130", here + ".post1"}) {
    manifest.torch = same;
    EXPECT_NO_THROW(check_runs_here(manifest, "net.pt2")) << same;
    EXPECT_EQ(version_warning(manifest, "net.pt2"), "") << same;
  }
  for (const char* const newer : {"2.100.0", "3.0.0+cpu", "2.100"}) {
    manifest.torch = newer;
    EXPECT_EQ(refusal_of(manifest), std::string("net.pt2: is compiled with torch ") + newer +
                                        ", which is newer than this LibTorch, " + here +
                                        "; export it with that version");
  }
  for (const char* const older : {"2.9.1+cpu", "2.10.0", "1.13.1"}) {
    manifest.torch = older;
    EXPECT_NO_THROW(check_runs_here(manifest, "net.pt2")) << older;
    EXPECT_EQ(version_warning(manifest, "net.pt2"), std::string("net.pt2 is compiled with torch ") + older +
                                                        ", which is older than this LibTorch, " + here +
                                                        "; export it with that version if results differ");
  }
}

// Errors are CorruptInputError, also for texts that are nearly valid.
TEST(PackageManifest, ChangedBytesGiveAManifestOrAnError) {
  const std::string valid = SmallPackage().manifest_text();
  std::mt19937_64 random(1);
  int64_t refused = 0;
  for (int i = 0; i < 3000; ++i) {
    std::string text = valid;
    for (uint64_t change = 0; change <= random() % 3; ++change) {
      char& byte = text[random() % text.size()];
      byte = random() % 2 == 0 ? valid[random() % valid.size()] : static_cast<char>(random() % 256);
    }
    try {
      parse_manifest(text, "net.pt2");
    } catch (const CorruptInputError& error) {
      EXPECT_THAT(error.what_without_backtrace(), StartsWith("net.pt2: its manifest")) << text;
      ++refused;
    }
  }
  EXPECT_GT(refused, 1000);
  EXPECT_LT(refused, 3000);
}

}  // namespace
}  // namespace narrowcast::models

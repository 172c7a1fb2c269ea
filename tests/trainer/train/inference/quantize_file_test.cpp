#include "trainer/train/inference/quantize_file.h"

#include <ATen/ATen.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>
#include <filesystem>
#include <memory>

#include <narrowcast/char_gpt.h>
#include <narrowcast/errors.h>
#include <narrowcast/models.h>
#include <narrowcast/weight_only_int8.h>
#include "models/quantization/weight_only_int8.h"
#include "tests/support/error_message.h"
#include "tests/support/temporary_folder.h"
#include "tests/trainer/train/files/script_fixtures.h"
#include "trainer/train/files/model_file.h"
#include "trainer/train/files/script_file.h"

namespace narrowcast::inference {
namespace {

using ::testing::ElementsAre;
using ::testing::EndsWith;
using testing::error_message;
using ::testing::HasSubstr;
using testing::TemporaryFolder;

models::StateDict floats() {
  return {{"a.bias", at::zeros({2})},
          {"a.weight", at::tensor({3.0F, 4.0F, 0.0F, 12.0F}).view({2, 2})},
          {"n", at::ones({5})}};
}

models::StateDict quantised() {
  models::StateDict state = floats();
  state["a.weight"] = at::tensor({3, 4, 1, 12}, at::kChar).view({2, 2});
  state["a.scales"] = at::ones({2});
  return state;
}

TEST(CompareStates, ReportsBytesAndErrorOfEachLayer) {
  const QuantizeReport report = compare_layers(floats(), quantised());
  ASSERT_EQ(report.layers.size(), 1U);
  EXPECT_EQ(report.layers[0].name, "a");
  EXPECT_EQ(report.layers[0].bytes_before, 16);
  EXPECT_EQ(report.layers[0].bytes_after, 4 + 8);
  EXPECT_DOUBLE_EQ(report.layers[0].relative_error, 1.0 / 13);  // one element off by 1, and |weight| is 13
  EXPECT_EQ(report.other_bytes, 8 + 20);
}

TEST(CompareStates, AWeightOfZerosHasNoError) {
  models::StateDict before = floats();
  before["a.weight"].zero_();
  models::StateDict after = quantised();
  after["a.weight"].zero_();
  EXPECT_EQ(compare_layers(before, after).layers[0].relative_error, 0);
}

TEST(CompareStates, ALayerThatHadScalesBeforeIsNone) {
  EXPECT_TRUE(compare_layers(quantised(), quantised()).layers.empty());
}

TEST(CompareStates, KnowsAModuleThatIsALayerItself) {
  const QuantizeReport report =
      compare_layers({{"bias", at::zeros({2})}, {"weight", at::eye(2)}},
                     {{"bias", at::zeros({2})}, {"scales", at::ones({2})}, {"weight", at::eye(2).to(at::kChar)}});
  ASSERT_EQ(report.layers.size(), 1U);
  EXPECT_EQ(report.layers[0].name, "");
  EXPECT_EQ(report.layers[0].bytes_after, 4 + 8);
  EXPECT_EQ(report.other_bytes, 8);
  EXPECT_THAT(report_text(report), HasSubstr("\nthe module "));
}

TEST(ReportText, EndsWithALineForEachLayerThatStays) {
  QuantizeReport report = compare_layers(floats(), quantised());
  report.float_layers = {{"b.out", "'b' uses its weight directly"}, {"", "it has no inputs"}};
  EXPECT_THAT(report_text(report), EndsWith(" B\nb.out is not quantised: 'b' uses its weight directly\n"
                                            "the module is not quantised: it has no inputs\n"));
}

TEST(ReportText, HasALinePerLayerAndTheSum) {
  const std::string text = report_text(compare_layers(floats(), quantised()));
  EXPECT_THAT(text, HasSubstr("layer                     before       after   relative error\n"));
  EXPECT_THAT(text, HasSubstr("a                           16 B        12 B          0.07692\n"));
  EXPECT_THAT(text, HasSubstr("all other tensors           28 B        28 B                -\n"));
  EXPECT_THAT(text, HasSubstr("sum                         44 B        40 B"));
}

// A file may give its layers any names.
TEST(ReportText, IsNoWiderThanTheNamesItShows) {
  QuantizeReport report = compare_layers(floats(), quantised());
  report.layers.push_back(report.layers[0]);
  report.layers[0].name = std::string(200'000, 'n');
  const std::string text = report_text(report);
  EXPECT_THAT(text, HasSubstr("n [200000 bytes] n"));
  EXPECT_THAT(text, HasSubstr("\na    "));
  EXPECT_LT(text.size(), 2000U);
}

std::shared_ptr<models::Model> small_gpt() {
  at::manual_seed(1);
  return models::create_model("char_gpt",
                              {{"layers", 1}, {"heads", 2}, {"width", 32}, {"context", 8}, {"vocabulary_size", 3}});
}

class QuantizeModelFile : public ::testing::Test {
 protected:
  QuantizeModelFile() {
    files::save_model(options.input, {.name = "char_gpt", .model = model, .vocabulary = {"a", "b", "c"}});
  }

  std::string refusal(const QuantizeOptions& changed) const {
    return error_message<c10::ValueError>([&] { quantize_file(changed); });
  }

  const TemporaryFolder folder;
  const std::shared_ptr<models::Model> model = small_gpt();
  QuantizeOptions options = {.input = folder / "m.safetensors", .output = folder / "q.safetensors"};
};

TEST_F(QuantizeModelFile, WritesAModelThatLoadsAsInt8) {
  const QuantizeReport report = quantize_file(options);
  const files::SavedModel loaded = files::load_model(options.output);
  EXPECT_EQ(loaded.quantization, files::kWeightOnlyInt8);
  EXPECT_THAT(loaded.vocabulary, ElementsAre("a", "b", "c"));
  const auto expected = models::WeightOnlyInt8QuantHandler(model).create_quantized_state_dict();
  const auto state = files::state_of(*loaded.model);
  ASSERT_EQ(state.size(), expected.size());
  for (const auto& [name, tensor] : expected) {
    EXPECT_TRUE(state.contains(name) && state.at(name).equal(tensor)) << name;
  }
  EXPECT_EQ(report.layers.size(), files::linear_layer_names(*model).size());
  for (const LayerReport& layer : report.layers) {
    const at::Tensor& scales = expected.at(layer.name + ".scales");
    EXPECT_EQ(layer.bytes_after, layer.bytes_before / 4 + static_cast<int64_t>(scales.nbytes())) << layer.name;
    // Each of a row's n errors is at most max|row| / 255, and the row's norm at least max|row|.
    const double n = static_cast<double>(layer.bytes_before) / 4 / static_cast<double>(scales.numel());
    EXPECT_GT(layer.relative_error, 0) << layer.name;
    EXPECT_LT(layer.relative_error, std::sqrt(n) / 255) << layer.name;
  }
  EXPECT_LT(std::filesystem::file_size(options.output), std::filesystem::file_size(options.input));
}

// It computes the same as the model converted in memory.
TEST_F(QuantizeModelFile, TheWrittenModelRuns) {
  quantize_file(options);
  const auto loaded = std::dynamic_pointer_cast<models::CharGpt>(files::load_model(options.output).model);
  models::WeightOnlyInt8QuantHandler(model).convert_for_runtime();
  const at::Tensor tokens = at::arange(16, at::kLong).remainder(3).view({2, 8});
  EXPECT_TRUE(loaded->logits(tokens).equal(std::dynamic_pointer_cast<models::CharGpt>(model)->logits(tokens)));
}

TEST_F(QuantizeModelFile, DryRunWritesNothing) {
  options.dry_run = true;
  EXPECT_FALSE(quantize_file(options).layers.empty());
  EXPECT_FALSE(std::filesystem::exists(options.output));
}

TEST_F(QuantizeModelFile, RefusesPathsThatDoNotFit) {
  const std::string input = options.input;
  EXPECT_THAT(refusal({.input = folder / "m.bin", .output = folder / "q.bin"}), HasSubstr("m.bin must be named"));
  EXPECT_THAT(refusal({.input = input, .output = folder / "q.pt"}), HasSubstr("q.pt must be named *.safetensors"));
  EXPECT_THAT(refusal({.input = input, .output = input, .overwrite = true}), HasSubstr("is the input"));
  EXPECT_THAT(refusal({.input = folder / "no.safetensors", .output = options.output}), HasSubstr("no.safetensors"));
  folder.write("q.safetensors", "precious");
  EXPECT_THAT(refusal(options), HasSubstr("--overwrite replaces it"));
  options.overwrite = true;
  EXPECT_NO_THROW(quantize_file(options));
  EXPECT_THAT(refusal({.input = options.output, .output = folder / "qq.safetensors"}),
              HasSubstr("is quantised already: weight_only_int8"));
}

TEST_F(QuantizeModelFile, RefusesAModelWithoutLinearLayers) {
  const std::string path = folder / "task.safetensors";
  files::save_model(
      path, {.name = "ddp_comm_hook_task", .model = models::create_model("ddp_comm_hook_task"), .vocabulary = {}});
  EXPECT_THAT(refusal({.input = path, .output = options.output}), HasSubstr("has no Linear layer"));
}

// A module with one Linear layer, with the name that Python's compiler gives it.
torch::jit::Module linear_script() {
  const auto unit = std::make_shared<torch::jit::CompilationUnit>();
  torch::jit::Module linear("__torch__.torch.nn.modules.linear.Linear", unit);
  linear.register_parameter("weight", at::randn({3, 8}), /*is_buffer=*/false);
  linear.register_parameter("bias", at::randn({3}), /*is_buffer=*/false);
  linear.define("def forward(self, input):\n    return torch.linear(input, self.weight, self.bias)\n");
  torch::jit::Module net("__torch__.Net", unit);
  net.register_module("layer", linear);
  net.define("def forward(self, x):\n    return self.layer.forward(x)\n");
  return net;
}

TEST(QuantizeScriptFile, WritesAModuleThatRunsInInt8AndKeepsItsExtraFiles) {
  const TemporaryFolder folder;
  torch::jit::Module module = linear_script();
  files::save_script(folder / "m.pt", {.module = module, .extra_files = {{"vocabulary.json", R"(["a"])"}}});
  const QuantizeReport report = quantize_file({.input = folder / "m.pt", .output = folder / "q.pt"});
  ASSERT_EQ(report.layers.size(), 1U);
  EXPECT_EQ(report.layers[0].name, "layer");
  EXPECT_EQ(report.layers[0].bytes_after, 3 * 8 + 3 * 4);
  files::SavedScript saved = files::load_script(folder / "q.pt");
  EXPECT_EQ(saved.extra_files.at("vocabulary.json"), R"(["a"])");
  const at::Tensor x = at::randn({2, 8});
  const auto state = models::ScriptWeightOnlyInt8QuantHandler(module).create_quantized_state_dict();
  const at::Tensor expected =
      weight_only_int8_linear(x, state.at("layer.weight"), state.at("layer.scales"), state.at("layer.bias"));
  EXPECT_TRUE(saved.module.forward({x}).toTensor().equal(expected));
}

TEST(QuantizeScriptFile, RefusesAModuleWithoutLinearLayers) {
  const TemporaryFolder folder;
  files::save_script(folder / "m.pt", {.module = testing::table_module(at::eye(3))});
  EXPECT_THAT(
      error_message<c10::ValueError>([&] { quantize_file({.input = folder / "m.pt", .output = folder / "q.pt"}); }),
      HasSubstr("has no Linear layer"));
  EXPECT_FALSE(std::filesystem::exists(folder / "q.pt"));
}

}  // namespace
}  // namespace narrowcast::inference

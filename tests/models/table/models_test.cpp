#include <narrowcast/models.h>

#include <ATen/ATen.h>
#include <gtest/gtest.h>

#include <limits>
#include <unordered_map>

#include <narrowcast/char_gpt.h>
#include "models/table/model_table.h"
#include "tests/support/error_message.h"

namespace narrowcast::models {
namespace {

std::string error_of(const std::string& name, const ModelOptions& options) {
  return testing::error_message<c10::ValueError>([&] { create_model(name, options); });
}

TEST(Models, NamesAreSorted) {
  EXPECT_EQ(model_names(), std::vector<std::string>({"char_gpt", "ddp_comm_hook_task", "gpt", "mlp"}));
}

// A variant of the model that takes little memory.
std::shared_ptr<Model> small_model(const std::string& name) {
  const ModelOptions tiny_gpt2 = {{"layers", 1}, {"width", 64}, {"context", 8}, {"vocabulary_size", 9}};
  return create_model(name, model_row(name).is_gpt2 ? tiny_gpt2 : ModelOptions());
}

TEST(Models, EveryModelIsMadeFromItsOwnOptions) {
  for (const std::string& name : model_names()) {
    const auto model = small_model(name);
    const auto again = create_model(name, model->options());
    ASSERT_GT(model->parameters().size(), 0) << name;
    EXPECT_EQ(again->named_parameters().keys(), model->named_parameters().keys()) << name;
    EXPECT_EQ(again->options(), model->options()) << name;
  }
}

// A gate gives each layer its parameters at the last moment. A parameter that was read before would be NaN.
TEST(Models, LayersAreAnnouncedBeforeTheirParametersAreRead) {
  const auto batch_of = [](const std::string& name) {
    const at::Tensor tokens = at::arange(16, at::kLong).remainder(9).view({2, 8});
    return model_row(name).data == DataKind::kText ? Batch{tokens, tokens.flip(1)}
                                                   : Batch{at::ones({2, 28, 28}), at::tensor({3, 7}, at::kLong)};
  };
  for (const std::string& name : learning_models()) {
    const auto model = small_model(name);
    ASSERT_TRUE(model->announces_layers()) << name;
    const at::Tensor expected = model->forward(batch_of(name));
    const at::NoGradGuard no_grad;
    std::unordered_map<const at::TensorImpl*, at::Tensor> values;
    for (at::Tensor& parameter : model->parameters()) {
      values[parameter.unsafeGetTensorImpl()] = parameter.clone();
      parameter.fill_(std::numeric_limits<float>::quiet_NaN());
    }
    model->set_layer_gate([&](const torch::nn::Module& layer) {
      for (at::Tensor& parameter : layer.parameters()) parameter.copy_(values.at(parameter.unsafeGetTensorImpl()));
    });
    EXPECT_TRUE(at::equal(model->forward(batch_of(name)), expected)) << name;
    model->set_layer_gate({});
    model->parameters()[0].fill_(std::numeric_limits<float>::quiet_NaN());
    EXPECT_TRUE(model->forward(batch_of(name)).isnan().item<bool>()) << name << ": the gate is still there";
  }
}

TEST(Models, AModelThatDoesNotAnnounceItsLayersRefusesAGate) {
  const auto model = small_model("ddp_comm_hook_task");
  EXPECT_EQ(testing::error_message<c10::ValueError>([&] { model->set_layer_gate([](const torch::nn::Module&) {}); }),
            "model " + model->name() + " does not announce its layers");
  model->set_layer_gate({});
}

TEST(Models, ARowNamesAllOptions) {
  for (const std::string& name : model_names()) {
    const ModelRow& row = model_row(name);
    EXPECT_EQ(row.name, name);
    const ModelOptions options = small_model(name)->options();
    EXPECT_EQ(row.options.size(), options.size()) << name;
    for (const auto& [option, value] : options) {
      EXPECT_TRUE(row.has_option(option)) << name << " " << option;
    }
    EXPECT_FALSE(row.has_option("wdith")) << name;
  }
}

int64_t counted(const Model& model) {
  int64_t count = 0;
  for (const at::Tensor& parameter : model.parameters()) count += parameter.numel();
  return count;
}

TEST(Models, CountsParametersWithoutMakingTheModel) {
  for (const std::string& name : model_names()) {
    const auto model = small_model(name);
    EXPECT_EQ(count_parameters(name, model->options()), counted(*model)) << name;
  }
  const ModelOptions gpt = {{"layers", 3}, {"heads", 1}, {"width", 5}, {"context", 7}, {"vocabulary_size", 11}};
  EXPECT_EQ(count_parameters("char_gpt", gpt), counted(*create_model("char_gpt", gpt)));
  EXPECT_EQ(count_parameters("char_gpt"), counted(*create_model("char_gpt")));
  for (const int64_t layers : {0, 1, 3}) {
    const ModelOptions mlp = {{"layers", layers}, {"inputs", 6}, {"hidden", 5}, {"classes", 3}};
    EXPECT_EQ(count_parameters("mlp", mlp), counted(*create_model("mlp", mlp))) << layers;
  }
  EXPECT_GT(count_parameters("char_gpt", {{"width", 16384}, {"layers", 256}}), 800'000'000'000);
  EXPECT_THROW(count_parameters("mlp", {{"hidden", 0}}), c10::ValueError);
  EXPECT_THROW(count_parameters("gpt5"), c10::ValueError);
}

TEST(Models, MissingOptionsTakeTheDefaults) {
  const auto model = create_model("char_gpt", {{"layers", 1}});
  EXPECT_EQ(model->options()["layers"], 1);
  EXPECT_EQ(model->options()["width"], CharGptOptions().width);
}

TEST(Models, UnknownNameListsTheKnownOnes) {
  EXPECT_EQ(error_of("gpt5", {}), "model: unknown name 'gpt5'; known: char_gpt, ddp_comm_hook_task, gpt, mlp");
}

TEST(Models, WrongOptionsNameModelOptionAndValue) {
  EXPECT_EQ(error_of("mlp", {{"width", 3}}), "mlp: unknown option 'width'; known: inputs, hidden, layers, classes");
  EXPECT_EQ(error_of("mlp", {{"hidden", 65537}}), "mlp: option hidden must be in 1..65536, but is 65537");
  EXPECT_EQ(error_of("mlp", {{"hidden", -1}}), "mlp: option hidden must be in 1..65536, but is -1");
  EXPECT_EQ(error_of("ddp_comm_hook_task", {{"width", 3}}), "ddp_comm_hook_task: has no options, but was given width");
}

}  // namespace
}  // namespace narrowcast::models

#include "models/imported/script_state.h"

#include <ATen/ATen.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <torch/csrc/autograd/autograd.h>

#include <string>

#include "models/imported/script_model.h"
#include "tests/models/imported/script_modules.h"
#include "tests/support/error_message.h"

namespace narrowcast::models {
namespace {

using ::testing::ElementsAre;
using testing::error_message;
using ::testing::HasSubstr;
using ::testing::Pair;
using testing::save_and_load;

// A module with a moving average of its inputs, which belongs to a submodule and which forward reassigns, and a count
// that is changed in place.
torch::jit::Module averaging_module(const std::string& assigned = "self.inner.average * 0.5 + x.mean(0) * 0.5") {
  const auto unit = testing::new_unit();
  torch::jit::Module inner = testing::make_module(unit, "Inner");
  inner.register_buffer("average", at::zeros({2}));
  inner.register_buffer("seen", at::zeros({}, at::kLong));
  torch::jit::Module module = testing::make_module(unit, "Averaging");
  module.register_parameter("w", at::ones({2}).requires_grad_(), /*is_buffer=*/false);
  module.register_module("inner", inner);
  module.define(
      "def forward(self, x: Tensor) -> Tensor:\n"
      "    y = x * self.w * self.inner.average\n"
      "    self.inner.seen.add_(1)\n"
      "    self.inner.average = " +
      assigned + "\n    return y\n");
  return save_and_load(module);
}

ScriptModel model_of(const torch::jit::Module& module) { return {module, {.name = "m.pt", .loss = Loss::kMse}}; }

// Checkpoints contain, and ranks send, the registered buffers; model.pt contains the module's slots.
TEST(ScriptState, BuffersThatAreAssignedStayRegistered) {
  const torch::jit::Module module = averaging_module();
  ScriptModel model = model_of(module);
  const at::Tensor average = model.named_buffers()["inner.average"];
  const at::Tensor x = at::full({4, 2}, 8.0);
  for (const double expected : {4.0, 6.0, 7.0}) {
    model.predictions(x);
    EXPECT_TRUE(average.equal(at::full({2}, expected))) << average;
    EXPECT_FALSE(average.requires_grad());
    EXPECT_TRUE(module.attr("inner").toModule().attr("average").toTensor().is_same(average));
  }
  EXPECT_EQ(model.named_buffers()["inner.seen"].item<int64_t>(), 3);
  average.zero_();  // As a checkpoint or rank 0 would set it.
  model.predictions(x);
  EXPECT_TRUE(average.equal(at::full({2}, 4.0))) << average;
}

// The product keeps the average that it was computed with.
TEST(ScriptState, BackwardPassesSeeWhatForwardRead) {
  ScriptModel model = model_of(averaging_module());
  model.named_buffers()["inner.average"].fill_(3);
  const at::Tensor loss = model.predictions(at::full({4, 2}, 8.0)).sum();
  EXPECT_TRUE(torch::autograd::grad({loss}, model.parameters())[0].equal(at::full({2}, 4 * 8.0 * 3)));
}

// A buffer that forward assigns is separated from the beginning from other buffers that share its memory.
TEST(ScriptState, ABufferThatIsAssignedIsNoOthers) {
  torch::jit::Module module = averaging_module();
  const at::Tensor shared = at::zeros({2});
  module.attr("inner").toModule().setattr("average", shared);
  module.register_buffer("initial", shared);
  ScriptModel model = model_of(module);
  model.predictions(at::ones({1, 2}));
  EXPECT_TRUE(model.named_buffers()["inner.average"].equal(at::full({2}, 0.5)));
  EXPECT_TRUE(model.named_buffers()["initial"].equal(at::zeros({2})));
}

TEST(ScriptState, APassThatFailsLeavesBuffersAsTheyWere) {
  const torch::jit::Module module = averaging_module();
  ScriptModel model = model_of(module);
  EXPECT_THROW(model.predictions(at::ones({4, 3})), c10::ValueError);
  const at::Tensor average = model.named_buffers()["inner.average"];
  EXPECT_TRUE(average.equal(at::zeros({2})));
  EXPECT_TRUE(module.attr("inner").toModule().attr("average").toTensor().is_same(average));
}

TEST(ScriptState, ABufferOfAnotherShapeOrKindIsNamed) {
  const auto message = [](const std::string& assigned) {
    ScriptModel model = model_of(averaging_module(assigned));
    return error_message<c10::ValueError>([&] { model.predictions(at::ones({4, 2})); });
  };
  EXPECT_EQ(message("x.detach()"),
            "m.pt: its code changes the buffer 'inner.average' to Float [4, 2], but the buffer that is saved and sent "
            "to other ranks is Float [2]");
  EXPECT_THAT(message("x.mean(0).long()"), HasSubstr("'inner.average' to Long [2], but"));
  EXPECT_EQ(message("torch.zeros_like(self.inner.average, dtype=5)"), "nothing was thrown");
}

TEST(ScriptState, AParameterThatIsAssignedIsNamed) {
  torch::jit::Module module("M");
  module.register_parameter("w", at::ones({2}).requires_grad_(), /*is_buffer=*/false);
  module.define("def forward(self, x: Tensor) -> Tensor:\n    self.w = self.w * 2.\n    return x * self.w\n");
  EXPECT_THAT(error_message<c10::ValueError>([&] { model_of(module); }),
              HasSubstr("m.pt: its code assigns to the parameter 'w', which would then no longer be trained"));
}

TEST(ScriptState, FurtherNamesAreKnown) {
  const auto unit = testing::new_unit();
  torch::jit::Module first = testing::make_linear(unit, 2, 2);
  torch::jit::Module tied(unit, first.type());
  tied.setattr("weight", first.attr("weight"));
  tied.setattr("bias", at::zeros({2}));
  torch::jit::Module module = testing::make_module(unit, "Net");
  module.register_module("first", first);
  module.register_module("tied", tied);
  module.register_module("again", tied);
  module.define("def forward(self, x: Tensor) -> Tensor:\n    return self.tied.forward(self.first.forward(x))\n");
  EXPECT_THAT(model_of(save_and_load(module)).aliases(),
              ElementsAre(Pair("again.bias", "tied.bias"), Pair("again.weight", "first.weight"),
                          Pair("tied.weight", "first.weight")));
}

torch::jit::Module module_with(const std::string& name, const at::Tensor& tensor, bool is_buffer = true) {
  torch::jit::Module part("Part");
  if (is_buffer) {
    part.register_buffer(name, tensor);
  } else {
    part.register_parameter(name, tensor, /*is_buffer=*/false);
  }
  torch::jit::Module module("Module");
  module.register_parameter("w", at::ones({2}).requires_grad_(), /*is_buffer=*/false);
  module.register_module("part", part);
  module.define("def forward(self, x: Tensor) -> Tensor:\n    return x * self.w\n");
  return save_and_load(module);
}

TEST(ScriptState, BuffersMayHaveEveryDtypeOfModelFiles) {
  for (const at::ScalarType dtype :
       {at::kFloat, at::kDouble, at::kHalf, at::kBFloat16, at::kComplexFloat, at::kBool, at::kByte, at::kChar,
        at::kShort, at::kInt, at::kLong, at::kUInt16, at::kUInt32, at::kUInt64, at::kFloat8_e4m3fn, at::kFloat8_e5m2}) {
    const ScriptModel model = model_of(module_with("extra", at::ones({3}).to(dtype)));
    EXPECT_EQ(model.named_buffers()["part.extra"].scalar_type(), dtype);
  }
}

TEST(ScriptState, TensorsThatCannotBeSavedAreNamed) {
  const auto message = [](const at::Tensor& tensor, bool is_buffer = true) {
    const torch::jit::Module module = module_with("extra", tensor, is_buffer);
    return error_message<c10::ValueError>([&] { model_of(module); });
  };
  EXPECT_EQ(message(at::ones({3}, at::kComplexDouble)),
            "m.pt: buffer 'part.extra' is ComplexDouble, which model files (safetensors) cannot hold");
  EXPECT_EQ(message(at::ones({3}).to(at::kFloat8_e4m3fnuz)),
            "m.pt: buffer 'part.extra' is Float8_e4m3fnuz, which model files (safetensors) cannot hold");
  EXPECT_EQ(message(at::ones({3}).to(at::kFloat8_e5m2fnuz)),
            "m.pt: buffer 'part.extra' is Float8_e5m2fnuz, which model files (safetensors) cannot hold");
  EXPECT_EQ(message(at::quantize_per_tensor(at::ones({3}), 0.5, 0, at::kQInt8)),
            "m.pt: buffer 'part.extra' is QInt8, which model files (safetensors) cannot hold");
  EXPECT_EQ(message(at::ones({3}).to_sparse()),
            "m.pt: buffer 'part.extra' has the layout Sparse, but only dense tensors can be saved and sent to other "
            "ranks");
  EXPECT_EQ(message(at::ones({3}, at::kComplexDouble), /*is_buffer=*/false),
            "m.pt: parameter 'part.extra' is ComplexDouble, which model files (safetensors) cannot hold");
}

// All rows are the same memory.
TEST(ScriptState, AnExpandedBufferCanBeWritten) {
  const ScriptModel model = model_of(module_with("mask", at::arange(3, at::kLong).expand({4, 3})));
  const at::Tensor mask = model.named_buffers()["part.mask"];
  EXPECT_TRUE(mask.equal(at::arange(3, at::kLong).expand({4, 3})));
  mask.copy_(at::arange(12, at::kLong).view({4, 3}));  // As rank 0's values or a checkpoint's.
  EXPECT_TRUE(mask.equal(at::arange(12, at::kLong).view({4, 3})));
}

}  // namespace
}  // namespace narrowcast::models

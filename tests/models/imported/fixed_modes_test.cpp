#include "models/imported/fixed_modes.h"

#include <ATen/ATen.h>
#include <gtest/gtest.h>

#include <memory>
#include <string>

#include "tests/models/imported/script_modules.h"
#include "tests/support/trained_modules.h"

namespace narrowcast::models {
namespace {

using testing::digit_net;
using testing::save_and_load;
using testing::trained_module;

// A module with running averages whose forward returns `expression` of `x`.
torch::jit::Module returning(const std::string& expression) {
  torch::jit::Module module = trained_module(std::make_shared<torch::jit::CompilationUnit>(), "M");
  module.register_parameter("w", at::ones({3}).requires_grad_(), /*is_buffer=*/false);
  module.register_buffer("mean", at::zeros({3}));
  module.register_buffer("var", at::ones({3}));
  module.define("def forward(self, x: Tensor) -> Tensor:\n    return " + expression + "\n");
  return save_and_load(module);
}

std::string fixed(const std::string& expression) { return describe_fixed_modes(returning(expression)); }

TEST(FixedModes, AreNoneWhereOperatorsFollowTheModule) {
  EXPECT_EQ(describe_fixed_modes(digit_net()), "");
  EXPECT_EQ(fixed("torch.batch_norm(x, self.w, None, self.mean, self.var, self.training, 0.1, 1e-5, False)"), "");
  EXPECT_EQ(fixed("torch.dropout(x, 0.5, self.training)"), "");
}

TEST(FixedModes, AreThoseOfConstantFlags) {
  EXPECT_EQ(fixed("torch.batch_norm(x, self.w, None, self.mean, self.var, False, 0.1, 1e-5, False)"),
            "aten::batch_norm in evaluation mode (once, in the module itself)");
  EXPECT_EQ(fixed("torch.batch_norm(x, self.w, None, self.mean, self.var, True, 0.1, 1e-5, False)"),
            "aten::batch_norm in training mode (once, in the module itself)");
  EXPECT_EQ(fixed("torch.instance_norm(x, self.w, None, self.mean, self.var, True, 0.1, 1e-5, False)"),
            "aten::instance_norm in training mode (once, in the module itself)");
  EXPECT_EQ(fixed("torch.dropout(torch.dropout(x, 0.5, True), 0.25, True) + torch.dropout(x, 0.5, False)"),
            "aten::dropout in evaluation mode (once, in the module itself); aten::dropout in training mode (2 times, "
            "first in the module itself)");
  EXPECT_EQ(fixed("torch.alpha_dropout(x, 0.5, True)"),
            "aten::alpha_dropout in training mode (once, in the module itself)");
  EXPECT_EQ(fixed("torch.scaled_dot_product_attention(x, x, x, None, 0.5, False)"),
            "aten::scaled_dot_product_attention in training mode (once, in the module itself)");
}

// Both modes of these operators compute the same.
TEST(FixedModes, AreNoneWhereTheModeDoesNotMatter) {
  EXPECT_EQ(fixed("torch.dropout(x, 0., True)"), "");
  EXPECT_EQ(fixed("torch.batch_norm(x, self.w, None, None, None, True, 0.1, 1e-5, False)"), "");
  EXPECT_EQ(fixed("torch.scaled_dot_product_attention(x, x, x, None, 0., False)"), "");
  EXPECT_EQ(fixed("x * self.w"), "");
}

TEST(FixedModes, AreFoundInSubmodulesAndBranches) {
  const auto unit = testing::new_unit();
  torch::jit::Module inner = testing::make_module(unit, "Inner");
  inner.define(
      "def forward(self, x: Tensor) -> Tensor:\n"
      "    if bool(x.sum() > 0):\n"
      "        x = torch.dropout(x, 0.5, True)\n"
      "    return x\n");
  torch::jit::Module outer = testing::make_module(unit, "Outer");
  outer.register_module("inner", inner);
  outer.define("def forward(self, x: Tensor) -> Tensor:\n    return self.inner.forward(x)\n");
  EXPECT_EQ(describe_fixed_modes(outer), "aten::dropout in training mode (once, in 'inner')");
}

}  // namespace
}  // namespace narrowcast::models

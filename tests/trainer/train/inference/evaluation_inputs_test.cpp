#include "trainer/train/evaluation/script_model.h"

#include <ATen/ATen.h>
#include <c10/util/Exception.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "tests/support/error_message.h"
#include "tests/trainer/train/files/script_fixtures.h"

namespace narrowcast::evaluation {
namespace {

using ::testing::AllOf;
using testing::error_message;
using ::testing::HasSubstr;
using testing::table_module;

models::Batch some_batch() {
  return {at::arange(6, at::kLong).view({2, 3}) % 4, at::arange(1, 7, at::kLong).view({2, 3}) % 4};
}

torch::jit::Module module_of(const std::string& forward) {
  torch::jit::Module module("M");
  module.define(forward);
  return module;
}

TEST(ScriptModel, LossIsTheCrossEntropyOfItsLogits) {
  const at::Tensor table = at::randn({4, 4}, at::kDouble);
  ScriptModel model(table_module(table), "m.pt");
  const models::Batch batch = some_batch();
  const at::Tensor expected =
      at::cross_entropy_loss(table.to(at::kFloat).index({batch.inputs.flatten()}), batch.targets.flatten());
  EXPECT_TRUE(model.forward(batch).equal(expected));
}

TEST(ScriptModel, WhatItsForwardDoesWrongIsNamed) {
  const auto message = [](torch::jit::Module module) {
    ScriptModel model(std::move(module), "m.pt");
    return error_message<c10::ValueError>([&] { model.forward(some_batch()); });
  };
  EXPECT_THAT(message(module_of("def forward(self, x: Tensor) -> int:\n    return 3\n")),
              HasSubstr("m.pt: its forward must return a tensor of logits, but returns Int"));
  EXPECT_THAT(message(module_of("def forward(self, x: Tensor) -> Tensor:\n    return x.sum().float()\n")),
              HasSubstr("for inputs of shape [2, 3] it returns []"));
  EXPECT_THAT(message(module_of("def forward(self, x: Tensor) -> Tensor:\n    return x.float()\n")),
              HasSubstr("returns 2 rows for 6 targets"));
  EXPECT_THAT(
      message(module_of("def forward(self, x: Tensor) -> Tensor:\n    assert False, 'no such day'\n    return x\n")),
      AllOf(HasSubstr("m.pt: its forward failed on inputs of shape [2, 3]"), HasSubstr("no such day")));
  EXPECT_THAT(message(table_module(at::zeros({4, 3}))),
              HasSubstr("has logits for 3 classes, but the data has a target 3"));
}

}  // namespace
}  // namespace narrowcast::evaluation

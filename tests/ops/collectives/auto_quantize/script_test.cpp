// The auto_quantize operators in TorchScript.
#include <ATen/ATen.h>
#include <gtest/gtest.h>

#include <string>
#include <vector>

#include "tests/ops/affine_uint8/reference.h"
#include "tests/ops/collectives/auto_quantize/calls.h"
#include "tests/ops/operators/script.h"
#include "tests/support/ranks.h"

namespace narrowcast {
namespace {

using test::same_bits;
using Tensors = std::vector<at::Tensor>;

constexpr int64_t kWorld = 3;

// The scripts read outputs before and after the collective. Neither read may be moved past the collective.
constexpr const char* kScript = R"(
def all_gather(self, x, group: str):
    outputs = [torch.zeros_like(x), torch.zeros_like(x), torch.zeros_like(x)]
    before = outputs[1] + 1
    narrowcast.auto_quantize_all_gather(outputs, x, "bfp16", group)
    return outputs + [before]
def all_to_all(self, xs: List[Tensor], group: str):
    outputs = [torch.zeros_like(x) for x in xs]
    before = outputs[1] + 1
    narrowcast.auto_quantize_all_to_all(outputs, xs, "fp16", group, quant_loss=2.0)
    return outputs + [before]
def all_to_all_single(self, x, group: str, rank: int):
    output = torch.zeros([3 * (rank + 1), 4])
    before = output + 1
    narrowcast.auto_quantize_all_to_all_single(output, x, "fp16", group, [rank + 1, rank + 1, rank + 1], [1, 2, 3])
    return [output, before]
)";

// Integers, which are exact in FP16 and BFP16.
at::Tensor input_of(int64_t rank) { return at::arange(24, at::kFloat).view({6, 4}) + 8 * rank; }

// The expected results of each method, in the order of a rank's peers.
Tensors gathered() {
  Tensors expected;
  for (int64_t sender = 0; sender < kWorld; ++sender) {
    expected.push_back(input_of(sender));
  }
  expected.push_back(at::ones({6, 4}));
  return expected;
}

Tensors exchanged(int64_t rank) {
  Tensors expected;
  for (int64_t sender = 0; sender < kWorld; ++sender) {
    expected.push_back(input_of(sender)[rank] / 2);
  }
  expected.push_back(at::ones({4}));
  return expected;
}

Tensors exchanged_rows(int64_t rank) {
  Tensors rows;
  for (int64_t sender = 0; sender < kWorld; ++sender) {
    rows.push_back(input_of(sender).split_with_sizes({1, 2, 3})[static_cast<size_t>(rank)]);
  }
  const at::Tensor expected = at::cat(rows);
  return {expected, at::ones_like(expected)};
}

void expect_same(const c10::IValue& returned, const Tensors& expected) {
  const auto tensors = returned.toTensorVector();
  ASSERT_EQ(tensors.size(), expected.size());
  for (size_t i = 0; i < tensors.size(); ++i) {
    EXPECT_TRUE(same_bits(tensors[i], expected[i])) << "tensor " << i;
  }
}

void expect_collectives(torch::jit::Module module, int64_t rank, const std::string& group) {
  const at::Tensor x = input_of(rank);
  for (int run = 0; run < test::kRunsUntilSettled; ++run) {
    expect_same(module.run_method("all_gather", x, group), gathered());
    expect_same(module.run_method("all_to_all", Tensors{x[0], x[1], x[2]}, group), exchanged(rank));
    expect_same(module.run_method("all_to_all_single", x, group, rank), exchanged_rows(rank));
  }
}

TEST(AutoQuantizeScript, RunsBeforeAndAfterSaving) {
  testing::run_ranks(kWorld, [](int64_t rank, const test::Group& group) {
    const testing::RegisteredGroup registered(group);
    const torch::jit::Module module = test::compile(kScript);
    expect_collectives(module, rank, registered.name());
    expect_collectives(test::save_and_load(module), rank, registered.name());
  });
}

}  // namespace
}  // namespace narrowcast

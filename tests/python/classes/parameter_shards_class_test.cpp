// torch.classes.narrowcast.ParameterShards from TorchScript. tests/python/package has the tests of its optimizer.
#include <ATen/ATen.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cstdint>
#include <string>
#include <vector>

#include "tests/python/classes/script.h"
#include "tests/support/ranks.h"
#include "tests/support/registered_group.h"

namespace narrowcast::classes {
namespace {

using ::testing::HasSubstr;
using testing::RegisteredGroup;

constexpr const char* kShardsScript = R"(
def make(parameters: List[Tensor], groups: List[int], options: Dict[str, Any], group: str) -> ParameterShards:
    return ParameterShards(parameters, groups, options, {"the optimizer": "SGD"}, group, None)

def step(shards: ParameterShards, value: float) -> None:
    for piece in shards.own_pieces():
        piece.fill_(value)
    shards.exchange(None)

def numbers(shards: ParameterShards) -> List[int]:
    return shards.ranks() + shards.pieces()[0] + shards.pieces()[1]

def agree(shards: ParameterShards, error: Dict[str, Any], text: str) -> List[str]:
    return shards.agree("a test", error, text)

def close(shards: ParameterShards) -> None:
    shards.close()
)";

torch::jit::CompilationUnit& shards_script() {
  static const std::shared_ptr<torch::jit::CompilationUnit> unit = compile(kShardsScript);
  return *unit;
}

TEST(ParameterShardsClass, ExchangesPiecesAndAgrees) {
  testing::run_ranks(2, [](int64_t rank, const auto& group) {
    const RegisteredGroup registered(group);
    const std::vector<at::Tensor> parameters = {at::zeros({200}).requires_grad_()};
    const auto make = [&](const std::vector<int64_t>& groups, const GivenOptions& options) {
      return shards_script().run_method("make", parameters, groups, to_option_dict(options), registered.name());
    };
    EXPECT_THAT(script_error([&] { make({0, 0}, {}); }), HasSubstr("there are 2 groups for 1 parameters"));
    EXPECT_THAT(script_error([&] { make({0}, {{"size", int64_t{2}}}); }), HasSubstr("unknown option 'size'"));
    EXPECT_THAT(script_error([&] { make({0}, {{"node_size", int64_t{1}}}); }), HasSubstr("every node has one rank"));
    const c10::IValue shards = make({0}, {{"node_size", int64_t{2}}, {"whole_parameters", false}});
    EXPECT_EQ(shards_script().run_method("numbers", shards).toIntVector(),
              (std::vector<int64_t>{0, 1, 0, 0, 64, 0, 64, 136}));
    shards_script().run_method("step", shards, static_cast<double>(rank + 1));
    EXPECT_TRUE(at::equal(parameters[0], at::cat({at::full({64}, 1.), at::full({136}, 2.)})));
    const auto agree = [&](const GivenOptions& error) {
      return shards_script().run_method("agree", shards, to_option_dict(error), "of rank " + std::to_string(rank));
    };
    EXPECT_EQ(agree({}).toListRef()[1].toStringRef(), "of rank 1");
    EXPECT_THAT(script_error([&] {
                  agree(rank == 1 ? GivenOptions{{"wrong value", "a reason"}} : GivenOptions{});
                }),
                HasSubstr("a test on rank 1: a reason"));
    shards_script().run_method("close", shards);
    EXPECT_THAT(script_error([&] { shards_script().run_method("numbers", shards); }),
                HasSubstr("the optimizer is closed"));
  });
}

}  // namespace
}  // namespace narrowcast::classes

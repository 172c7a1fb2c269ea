// torch.classes.narrowcast.OuterOptimizer from TorchScript: the same parameters as the optimizer in C++.
#include <ATen/ATen.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <torch/optim/sgd.h>

#include <string>
#include <vector>

#include <narrowcast/outer_optimizer.h>
#include "tests/python/classes/script.h"
#include "tests/support/ranks.h"
#include "tests/support/registered_group.h"

namespace narrowcast::classes {
namespace {

using ::testing::HasSubstr;
using testing::RegisteredGroup;
using Group = c10::intrusive_ptr<c10d::ProcessGroup>;

constexpr const char* kOuterScript = R"(
def make(parameters: List[Tensor], options: Dict[str, Any], group: str) -> OuterOptimizer:
    return OuterOptimizer(parameters, options, group)

def step(outer: OuterOptimizer) -> None:
    outer.step()

def finish(outer: OuterOptimizer) -> int:
    outer.finish()
    return outer.exchanges()

def borrow(outer: OuterOptimizer) -> None:
    outer.take_outer_parameters()

def restore(outer: OuterOptimizer) -> None:
    outer.restore_own_parameters()

def reload(outer: OuterOptimizer,
           other: OuterOptimizer, world_size: int) -> None:
    replica, own = outer.state()
    other.load_state(replica, world_size, [own], own)
)";

torch::jit::CompilationUnit& outer_script() {
  static const std::shared_ptr<torch::jit::CompilationUnit> unit = compile(kOuterScript);
  return *unit;
}

c10::IValue make_outer(const std::vector<at::Tensor>& parameters, const GivenOptions& given, const std::string& group) {
  return outer_script().run_method("make", parameters, to_option_dict(given), group);
}

std::vector<at::Tensor> make_parameters() {
  return {at::ones({30, 7}).set_requires_grad(true), at::ones({5}).set_requires_grad(true)};
}

// A local step of a rank: gradients that differ between ranks, times the rate.
void move(const std::vector<at::Tensor>& parameters, int64_t rank, int64_t step) {
  const at::NoGradGuard no_grad;
  for (const at::Tensor& parameter : parameters) {
    parameter.sub_(
        at::sin(at::arange(parameter.numel()) * static_cast<double>(1 + rank + 3 * step)).view_as(parameter));
  }
}

const GivenOptions kOptions{{"sync_every", int64_t{4}},
                            {"outer_optimizer", std::string("nesterov")},
                            {"outer_learning_rate", 0.5},
                            {"outer_momentum", 0.8},
                            {"fragments", int64_t{2}},
                            {"overlap_steps", int64_t{1}},
                            {"outer_mix", 0.25},
                            {"outer_format", std::string("int8_b128")},
                            {"outer_error_feedback", true},
                            {"node_size", int64_t{1}},
                            {"outer_warmup", int64_t{0}},
                            {"first_exchange", int64_t{2}},
                            {"init_sync", false}};

OuterOptions options_in_cpp() {
  return OuterOptions()
      .sync_every(4)
      .optimizer(OuterKind::kNesterov)
      .learning_rate(0.5)
      .momentum(0.8)
      .fragments(2)
      .overlap_steps(1)
      .mix(0.25)
      .wire({.format = WireFormat::kInt8B128, .error_feedback = true, .node_size = 1})
      .first_exchange(2);
}

void expect_equal_parameters(const std::vector<at::Tensor>& a, const std::vector<at::Tensor>& b, int64_t step) {
  for (size_t i = 0; i < a.size(); ++i) EXPECT_TRUE(at::equal(a[i], b[i])) << "parameter " << i << ", step " << step;
}

TEST(OuterOptimizerClass, GivesTheParametersOfTheOptimizerInCpp) {
  testing::run_ranks(2, [](int64_t rank, const Group& group) {
    const RegisteredGroup registered(group);
    const auto own = make_parameters();
    const auto in_cpp = make_parameters();
    torch::optim::SGD inner(in_cpp, torch::optim::SGDOptions(1));  // Without gradients its steps change nothing.
    OuterOptimizer expected(inner, group, options_in_cpp());
    const c10::IValue outer = make_outer(own, kOptions, registered.name());
    for (int64_t step = 0; step < 9; ++step) {
      move(own, rank, step);
      move(in_cpp, rank, step);
      outer_script().run_method("step", outer);
      expected.step();
      expect_equal_parameters(own, in_cpp, step);
    }
    {
      const OuterOptimizer::OuterParameters borrowed(expected);
      outer_script().run_method("borrow", outer);
      expect_equal_parameters(own, in_cpp, -1);
      EXPECT_THAT(script_error([&] { outer_script().run_method("step", outer); }),
                  HasSubstr("the model has the outer parameters"));
      outer_script().run_method("restore", outer);
    }
    expect_equal_parameters(own, in_cpp, 9);
    expected.finish();
    EXPECT_EQ(outer_script().run_method("finish", outer).toInt(), expected.exchanges());
    expect_equal_parameters(own, in_cpp, 10);
  });
}

TEST(OuterOptimizerClass, ResumesWithEqualBits) {
  testing::run_ranks(2, [](int64_t rank, const Group& group) {
    const RegisteredGroup registered(group);
    const auto first = make_parameters();
    const auto second = make_parameters();
    const c10::IValue outer = make_outer(first, kOptions, registered.name());
    const c10::IValue resumed = make_outer(second, kOptions, registered.name());
    for (int64_t step = 0; step < 5; ++step) {
      move(first, rank, step);
      outer_script().run_method("step", outer);
    }
    {
      const at::NoGradGuard no_grad;
      for (size_t i = 0; i < first.size(); ++i) second[i].copy_(first[i]);
    }
    outer_script().run_method("reload", outer, resumed, int64_t{2});
    for (int64_t step = 5; step < 10; ++step) {
      for (const auto* const each : {&first, &second}) move(*each, rank, step);
      outer_script().run_method("step", outer);
      outer_script().run_method("step", resumed);
      expect_equal_parameters(first, second, step);
    }
  });
}

TEST(OuterOptimizerClass, BeginsWithParametersOfRank0) {
  testing::run_ranks(3, [](int64_t rank, const Group& group) {
    const RegisteredGroup registered(group);
    const auto parameters = make_parameters();
    move(parameters, rank, 0);
    const auto first = make_parameters();
    move(first, 0, 0);
    const auto before = parameters[0].detach().clone();
    const auto make = [&](const GivenOptions& given) { make_outer(parameters, given, registered.name()); };
    EXPECT_THAT(script_error([&] {
                  make({{"sync_every", int64_t{rank == 1 ? 0 : 4}}});
                }),
                HasSubstr("OuterOptimizer on rank 1: sync_every: must be at least 1, but is 0"));
    EXPECT_TRUE(at::equal(parameters[0], before)) << "nothing is broadcast";
    GivenOptions options = kOptions;
    options.erase("init_sync");
    make(options);
    expect_equal_parameters(parameters, first, 0);
  });
}

// Rank 1 has a parameter that no optimizer takes. Afterwards all ranks make the right call.
TEST(OuterOptimizerClass, GivesTheErrorOfOneRanksParametersToAll) {
  testing::run_ranks(3, [](int64_t rank, const Group& group) {
    const RegisteredGroup registered(group);
    const auto parameters = make_parameters();
    EXPECT_THAT(
        script_error([&] {
          make_outer({rank == 1 ? parameters[0] * 2 : parameters[0]}, {{"sync_every", int64_t{4}}}, registered.name());
        }),
        HasSubstr("OuterOptimizer on rank 1: can't optimize a non-leaf Tensor"));
    make_outer(parameters, kOptions, registered.name());
  });
}

TEST(OuterOptimizerClass, NamesOptionsThatAreWrong) {
  testing::run_ranks(1, [](int64_t, const Group& group) {
    const RegisteredGroup registered(group);
    const auto error = [&](const GivenOptions& options) {
      return script_error([&] { make_outer(make_parameters(), options, registered.name()); });
    };
    EXPECT_THAT(error({{"sync_evry", int64_t{3}}}), HasSubstr("unknown option 'sync_evry'; known: sync_every, "));
    EXPECT_THAT(error({{"sync_every", 3.5}}), HasSubstr("sync_every: must be int, but is float 3.5"));
    EXPECT_THAT(error({{"exempt_one_dimensional", true}}), HasSubstr("unknown option 'exempt_one_dimensional'"));
    EXPECT_THAT(error({{"outer_optimizer", std::string("adam")}}), HasSubstr("outer_optimizer"));
    EXPECT_THAT(error({{"sync_every", int64_t{0}}}), HasSubstr("sync_every: must be at least 1, but is 0"));
    EXPECT_THAT(error({{"sync_every", int64_t{1}}, {"sync_seconds", 2.0}}),
                HasSubstr("sync_every: 1 has no effect with sync_seconds"));
    EXPECT_THAT(error({{"sync_seconds", -1.0}}), HasSubstr("sync_seconds: must be positive, but is -1"));
    EXPECT_THAT(error({{"local_group", int64_t{2}}}), HasSubstr("local_group: 2 has no effect without sync_seconds"));
    EXPECT_THAT(error({{"sync_seconds", 2.0}, {"local_group", std::string("two")}}),
                HasSubstr("local_group: must be a number, \"node\" or \"none\", but is \"two\""));
    EXPECT_THAT(error({{"sync_seconds", 2.0}, {"local_group", 0.5}}), HasSubstr("local_group: must be int or str"));
    EXPECT_THAT(error({{"init_sync", int64_t{1}}}), HasSubstr("init_sync: must be bool, but is 1"));
    EXPECT_THAT(error({{"silence_seconds", int64_t{1}}}),
                HasSubstr("silence_seconds: must be 0 or in 3..1e+06, but is 1"));
    EXPECT_THAT(error({{"wrong value", std::string("Python's text")}}), HasSubstr("Python's text"));
    EXPECT_THAT(error({{"wrong type", std::string("Python's text")}}), HasSubstr("Python's text"));
  });
}

}  // namespace
}  // namespace narrowcast::classes

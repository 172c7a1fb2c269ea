// torch.classes.narrowcast.CommHook from TorchScript: the same bits as the hook in C++.
#include <ATen/ATen.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <chrono>
#include <string>
#include <vector>

#include <narrowcast/hooks.h>
#include "tests/python/classes/hook_script.h"
#include "tests/python/classes/script.h"
#include "tests/support/patience.h"
#include "tests/support/ranks.h"
#include "tests/support/registered_group.h"

namespace narrowcast::classes {
namespace {

using hooks::CommHook;
using ::testing::AllOf;
using ::testing::HasSubstr;
using testing::RegisteredGroup;
using Group = c10::intrusive_ptr<c10d::ProcessGroup>;

constexpr int64_t kSteps = 3;

// On so slow a network "auto" chooses int8, whatever it measures on a busy machine.
constexpr double kAutoGbit = 0.0001;

// The parameters of a model with two buckets: a matrix and a bias in each.
struct Model {
  std::vector<std::vector<at::Tensor>> buckets = {{at::zeros({40, 30}), at::zeros({40})},
                                                  {at::zeros({17, 64}), at::zeros({17})}};

  std::vector<at::Tensor> parameters() const { return {buckets[0][0], buckets[0][1], buckets[1][0], buckets[1][1]}; }
  std::vector<hooks::NamedParameter> named() const {
    std::vector<hooks::NamedParameter> named;
    for (const at::Tensor& parameter : parameters()) named.push_back({names()[named.size()], parameter});
    return named;
  }
  static std::vector<std::string> names() { return {"0.weight", "0.bias", "1.weight", "1.bias"}; }
};

at::Tensor gradients_of(const std::vector<at::Tensor>& parameters, int64_t rank, int64_t step) {
  int64_t numel = 0;
  for (const at::Tensor& parameter : parameters) numel += parameter.numel();
  return at::sin(at::arange(numel, at::kFloat) * static_cast<double>(1 + rank + 7 * step)) * (0.1 + rank);
}

// One step's buckets, averaged by the class.
std::vector<at::Tensor> step_of_class(const c10::IValue& hook, const Model& model, int64_t rank, int64_t step) {
  std::vector<at::Tensor> means;
  for (size_t i = 0; i < model.buckets.size(); ++i) {
    const at::Tensor buffer = gradients_of(model.buckets[i], rank, step);
    const bool is_last = i + 1 == model.buckets.size();
    const auto future = hook_script()
                            .run_method("average", hook, buffer, static_cast<int64_t>(i), is_last, model.buckets[i])
                            .toFuture();
    future->waitAndThrow();
    means.push_back(future->value().isTensor() ? future->value().toTensor() : future->value().toTensorVector().at(0));
  }
  return means;
}

// The same by the hook in C++.
std::vector<at::Tensor> step_of_hook(CommHook& hook, const Model& model, int64_t rank, int64_t step) {
  std::vector<at::Tensor> means;
  for (size_t i = 0; i < model.buckets.size(); ++i) {
    const std::vector<at::Tensor>& parameters = model.buckets[i];
    const auto first = static_cast<size_t>(parameters[0].numel());
    c10d::GradBucket bucket(i, model.buckets.size(), gradients_of(parameters, rank, step), {0, first},
                            {first, static_cast<size_t>(parameters[1].numel())},
                            {parameters[0].sizes(), parameters[1].sizes()}, parameters, std::nullopt);
    const auto future = hook.runHook(bucket);
    future->waitAndThrow();
    means.push_back(hook.parseHookResult(future->value()));
  }
  return means;
}

struct Case {
  std::string hook;
  GivenOptions options = {};
  hooks::HookOptions in_cpp = {};
};

std::vector<Case> cases() {
  std::vector<Case> cases;
  for (const std::string& name : hooks::comm_hook_names()) {
    if (name == "none" || name == "auto") continue;  // The choice of auto depends on its measurements.
    cases.push_back({name});
    if (hooks::takes_wire_options(name)) {  // The ranks share a node, within which nothing is rounded.
      cases.push_back({name, {{"levels", std::string("one")}}, {.wire = {.levels = hooks::Levels::kOne}}});
    }
  }
  cases.push_back(
      {"auto",
       {{"link_gbit", kAutoGbit}, {"link_us", int64_t{50}}, {"auto_bits", int64_t{8}}, {"node_size", int64_t{1}}},
       {.wire = {.node_size = 1, .link_gbit = kAutoGbit, .link_us = 50, .auto_bits = 8}}});
  cases.push_back(
      {"int8",
       {{"error_feedback", true},
        {"stochastic_rounding", int64_t{7}},
        {"exempt_one_dimensional", true},
        {"node_size", int64_t{1}}},
       {.wire = {
            .stochastic_rounding_seed = 7, .error_feedback = true, .exempt_one_dimensional = true, .node_size = 1}}});
  cases.push_back({"quantized_allreduce",
                   {{"hook_format", std::string("int6_b32")}, {"levels", std::string("one")}},
                   {.wire = {.format = WireFormat::kInt6B32, .levels = hooks::Levels::kOne}}});
  cases.push_back({"power_sgd",
                   {{"power_sgd_start", int64_t{0}}, {"power_sgd_memory", std::string("averaged")}},
                   {.power_sgd = {.start = 0, .memory = hooks::PowerSgdMemory::kAveraged}}});
  return cases;
}

void expect_equal(const std::vector<at::Tensor>& a, const std::vector<at::Tensor>& b, const std::string& what) {
  ASSERT_EQ(a.size(), b.size());
  for (size_t i = 0; i < a.size(); ++i) EXPECT_TRUE(at::equal(a[i], b[i])) << what << ", bucket " << i;
}

class CommHookClass : public ::testing::TestWithParam<int64_t> {};

TEST_P(CommHookClass, GivesTheBitsOfTheHookInCpp) {
  testing::run_ranks(GetParam(), [](int64_t rank, const Group& group) {
    const RegisteredGroup registered(group);
    for (const Case& each : cases()) {
      const Model model;
      hooks::HookOptions in_cpp = each.in_cpp;
      in_cpp.process_group = group;
      const auto hook = hooks::create_comm_hook(each.hook, in_cpp);
      const c10::IValue own = make_hook(each.hook, each.options, registered.name());
      for (int64_t step = 0; step < kSteps; ++step) {
        expect_equal(step_of_class(own, model, rank, step), step_of_hook(*hook, model, rank, step), each.hook);
      }
      EXPECT_EQ(hook_script().run_method("sent", own).toInt(), hook->payload_bytes_sent()) << each.hook;
    }
  });
}

INSTANTIATE_TEST_SUITE_P(Worlds, CommHookClass, ::testing::Values(1, 2, 3));

TEST(CommHookClassState, ResumesWithEqualBits) {
  testing::run_ranks(2, [](int64_t rank, const Group& group) {
    const RegisteredGroup registered(group);
    const Model model;
    const auto names = Model::names();
    for (const char* const name : {"int8", "var5"}) {
      const GivenOptions options{
          {"error_feedback", true}, {"stochastic_rounding", int64_t{3}}, {"levels", std::string("one")}};
      const c10::IValue first = make_hook(name, options, registered.name());
      step_of_class(first, model, rank, 0);
      const c10::IValue saved = hook_script().run_method("state", first, names, model.parameters());
      const auto continued = step_of_class(first, model, rank, 1);
      const c10::IValue second = make_hook(name, options, registered.name());
      c10::impl::GenericList states(saved.type());
      states.push_back(saved);
      states.push_back(saved);
      hook_script().run_method("load", second, states, names, model.parameters());
      expect_equal(step_of_class(second, model, rank, 1), continued, name);
      const c10::IValue fresh = make_hook(name, options, registered.name());
      EXPECT_FALSE(at::equal(step_of_class(fresh, model, rank, 1)[0], continued[0])) << "the state matters";
    }
  });
}

// A hook may last longer than the model. The engine's thread releases tensors a moment after the step.
TEST(CommHookClassState, KeepsNoParameters) {
  testing::run_ranks(2, [](int64_t rank, const Group& group) {
    const RegisteredGroup registered(group);
    for (const Case& each : cases()) {
      const c10::IValue hook = make_hook(each.hook, each.options, registered.name());
      std::vector<c10::weak_intrusive_ptr<c10::StorageImpl>> memories;
      {
        const Model model;
        for (int64_t step = 0; step < kSteps; ++step) step_of_class(hook, model, rank, step);
        for (const at::Tensor& parameter : model.parameters()) {
          memories.push_back(parameter.storage().getWeakStorageImpl());
        }
      }
      const auto end = std::chrono::steady_clock::now() + std::chrono::seconds(20);
      const auto are_gone = [&] {
        return std::ranges::all_of(memories, [](const auto& each) { return each.expired(); });
      };
      while (!are_gone() && std::chrono::steady_clock::now() < end) testing::pause_between_looks();
      EXPECT_TRUE(are_gone()) << each.hook;
    }
  });
}

TEST(CommHookClassErrors, NameWhatIsWrong) {
  testing::run_ranks(2, [](int64_t rank, const Group& group) {
    const RegisteredGroup registered(group);
    const auto error = [&](const std::string& name, const GivenOptions& options) {
      return script_error([&] { make_hook(name, options, registered.name()); });
    };
    EXPECT_THAT(error("int9", {}), HasSubstr("hook: unknown name 'int9'"));
    EXPECT_THAT(error("none", {}), HasSubstr("'none' is not a hook"));
    EXPECT_THAT(error("int8", {{"level", 1.0}}), HasSubstr("unknown option 'level'; known: hook_format"));
    EXPECT_THAT(error("int8", {{"node_size", 1.5}}), HasSubstr("node_size: must be int, but is float 1.5"));
    EXPECT_THAT(error("int8", {{"device", std::string("tpu")}}),
                HasSubstr(R"(device: must be "cpu" or "cuda", but is "tpu")"));
    EXPECT_THAT(error("int8", {{"node_size", at::zeros({1})}}),
                HasSubstr("node_size: must be a bool, int, float or str, but is Tensor"));
    EXPECT_THAT(error(rank == 0 ? "int8" : "int4", {}),
                HasSubstr("create_comm_hook: hook differs between ranks: rank 0 has int8, rank 1 has int4"));
    EXPECT_THAT(script_error([] { make_hook("int8", {}, "no such group"); }),
                HasSubstr("group_name: no process group is registered as \"no such group\""));
    EXPECT_THAT(error("int8", {{"silence_seconds", std::string("3")}}),
                HasSubstr("silence_seconds: must be float, but is str 3"));
    EXPECT_THAT(error("int8", {{"silence_seconds", rank == 0 ? 2.5 : 30.0}}),
                HasSubstr("create_comm_hook on rank 0: silence_seconds: must be 0 or in 3..1e+06, but is 2.5"));
    EXPECT_THAT(error("int8", {{"silence_seconds", 20.0 + static_cast<double>(rank)}}),
                HasSubstr("silence_seconds differs between ranks: rank 0 has 20, rank 1 has 21"));
    const c10::IValue hook =
        make_hook("int8", {{"error_feedback", {}}, {"silence_seconds", int64_t{0}}}, registered.name());
    EXPECT_THAT(script_error([&] {
                  hook_script().run_method("average", hook, at::zeros({3}), int64_t{0}, true,
                                           std::vector<at::Tensor>{at::zeros({4})});
                }),
                HasSubstr("bucket 0 has 3 numbers, but its parameters have 4"));
    EXPECT_THAT(script_error([&] { hook_script().run_method("close", hook); }), HasSubstr("the hook is closed"));
  });
}

}  // namespace
}  // namespace narrowcast::classes

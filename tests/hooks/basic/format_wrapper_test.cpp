// hooks::wrap_in_format: the bucket that the inner hook gets, the result, and the properties that are passed on.
#include <ATen/ATen.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <stdexcept>
#include <string>
#include <tuple>
#include <vector>

#include <narrowcast/hooks.h>
#include "tests/hooks/all/bucket.h"
#include "tests/hooks/all/run_hook.h"
#include "tests/hooks/power_sgd/power_sgd_run.h"
#include "tests/support/error_message.h"
#include "tests/support/ranks.h"

namespace narrowcast::hooks {
namespace {

using Group = c10::intrusive_ptr<c10d::ProcessGroup>;
using testing::error_message;
using testing::run_ranks;

at::ScalarType dtype_named(const std::string& format) { return format == "fp16" ? at::kHalf : at::kBFloat16; }

// Records its buckets, and returns the answer that it was given.
class NotingHook final : public CommHook {
 public:
  using Answer = std::function<c10::IValue(const at::Tensor& buffer)>;
  struct Note {
    at::Tensor buffer;
    std::vector<at::Tensor> gradients;
    size_t index = 0;
    bool is_last = false;
  };

  NotingHook(std::vector<Note>& notes, Answer answer) : notes_(notes), answer_(std::move(answer)) {}

  std::string_view name() const override { return "noting"; }
  c10::intrusive_ptr<c10::ivalue::Future> runHook(c10d::GradBucket& bucket) override {
    notes_.push_back({bucket.getBuffer(), bucket.getGradients(), bucket.getIndex(), bucket.isLast()});
    auto future = c10::make_intrusive<c10::ivalue::Future>(c10::TensorType::get());
    future->markCompleted(answer_(bucket.getBuffer()));
    return future;
  }

 private:
  std::vector<Note>& notes_;
  const Answer answer_;
};

class WrappedIn : public ::testing::TestWithParam<std::string> {
 protected:
  const std::string format_ = GetParam();
  const at::ScalarType dtype_ = dtype_named(format_);
};

TEST_P(WrappedIn, GivesTheRoundedBucketAndCastsTheResultBack) {
  at::manual_seed(1);
  for (const auto bucket_dtype : {at::kFloat, at::kDouble, at::kHalf, at::kBFloat16}) {
    std::vector<NotingHook::Note> notes;
    const auto hook = wrap_in_format(
        std::make_unique<NotingHook>(notes, [](const at::Tensor& buffer) { return buffer * 3; }), format_);
    EXPECT_EQ(hook->name(), format_ + "(noting)");
    const std::vector<at::Tensor> parameters{at::zeros({3, 4}, bucket_dtype), at::zeros({5}, bucket_dtype)};
    const std::vector<at::Tensor> gradients{at::randn({3, 4}).to(bucket_dtype), at::randn({5}).to(bucket_dtype)};
    for (int step = 0; step < 2; ++step) {
      notes.clear();
      auto bucket = make_parameters_bucket(parameters, gradients, 1, 2);
      const at::Tensor buffer = bucket.getBuffer();
      const at::Tensor rounded = buffer.to(dtype_, /*non_blocking=*/false, /*copy=*/true);
      const auto future = hook->runHook(bucket);
      future->waitAndThrow();
      const at::Tensor result = hook->parseHookResult(future->value());
      EXPECT_EQ(notes.at(0).buffer.scalar_type(), dtype_);
      EXPECT_TRUE(at::equal(notes[0].buffer, rounded)) << bucket_dtype;
      ASSERT_EQ(notes[0].gradients.size(), 2U);
      EXPECT_TRUE(at::equal(notes[0].gradients[0], gradients[0].to(dtype_)));
      EXPECT_EQ(notes[0].gradients[1].sizes(), parameters[1].sizes());
      EXPECT_EQ(notes[0].index, 1U);
      EXPECT_TRUE(notes[0].is_last);
      EXPECT_EQ(result.scalar_type(), bucket_dtype);
      EXPECT_TRUE(at::equal(result, (rounded * 3).to(bucket_dtype))) << bucket_dtype;
      EXPECT_TRUE(bucket.getBuffer().is_same(buffer)) << "the bucket is as it was";
    }
  }
}

// PyTorch's two hooks of that kind equal this wrapper around allreduce: they cast, divide, all-reduce and cast back.
TEST_P(WrappedIn, AroundAllReduceHasTheBitsOfTheCompressingHook) {
  at::manual_seed(2);
  for (const int64_t world_size : {1, 2, 3, 4}) {
    std::vector<at::Tensor> gradients;
    for (int64_t rank = 0; rank < world_size; ++rank) gradients.push_back(at::randn({1000}));
    run_ranks(world_size, [&](int64_t rank, const Group& group) {
      const auto wrapped = wrap_in_format(create_comm_hook("allreduce", {.process_group = group}), format_);
      const auto compressing = create_comm_hook(format_ + "_compress", {.process_group = group});
      EXPECT_TRUE(at::equal(run_on(*wrapped, make_bucket(gradients[rank].clone())),
                            run_on(*compressing, make_bucket(gradients[rank].clone()))));
      EXPECT_EQ(wrapped->payload_bytes_sent(), compressing->payload_bytes_sent());
      EXPECT_EQ(wrapped->compression(), compressing->compression());
    });
  }
}

INSTANTIATE_TEST_SUITE_P(Formats, WrappedIn, ::testing::Values("fp16", "bf16"),
                         [](const auto& info) { return info.param; });

// Hooks with state from step to step.
HookOptions options_with_state(const std::string& name, const Group& group) {
  HookOptions options{.process_group = group, .wire = {.node_size = 1, .link_gbit = 10, .link_us = 50}};
  if (name == "power_sgd") {
    options.power_sgd = {.start = 1};
  } else {
    options.wire.error_feedback = true;
  }
  return options;
}

class WrappedHook : public ::testing::TestWithParam<std::tuple<std::string, int64_t>> {
 protected:
  const std::string name_ = std::get<0>(GetParam());
  const int64_t world_size_ = std::get<1>(GetParam());
  const std::vector<at::Tensor> parameters_{at::zeros({60, 40}), at::zeros({30, 50})};

  std::unique_ptr<CommHook> make(const Group& group) const {
    return create_comm_hook(name_, options_with_state(name_, group));
  }
  std::unique_ptr<CommHook> make_wrapped(const Group& group) const { return wrap_in_format(make(group), "bf16"); }
  static at::Tensor gradients(int64_t rank, int64_t step) {
    at::Generator generator = at::detail::createCPUGenerator(static_cast<uint64_t>(10 * step + rank));
    return at::randn({60 * 40 + 30 * 50}, generator);
  }
};

TEST_P(WrappedHook, AveragesAsOnRoundedBuckets) {
  run_ranks(world_size_, [&](int64_t rank, const Group& group) {
    const auto plain = make(group);
    const auto wrapped = make_wrapped(group);
    for (int64_t step = 0; step < 4; ++step) {
      const at::Tensor gradient = gradients(rank, step);
      const at::Tensor expected = average_step(*plain, parameters_, gradient.to(at::kBFloat16)).to(at::kFloat);
      EXPECT_TRUE(at::equal(average_step(*wrapped, parameters_, gradient), expected)) << step;
    }
    EXPECT_EQ(wrapped->payload_bytes_sent(), plain->payload_bytes_sent());
    EXPECT_EQ(wrapped->compression(), plain->compression());
    EXPECT_EQ(wrapped->nodes(), plain->nodes());
    EXPECT_EQ(wrapped->decision(), plain->decision());
    EXPECT_EQ(wrapped->predicted_seconds(1000), plain->predicted_seconds(1000));
    EXPECT_EQ(wrapped->name(), "bf16(" + name_ + ")");
  });
}

TEST_P(WrappedHook, ResumesAndRescalesWithTheStateOfTheHookInside) {
  run_ranks(world_size_, [&](int64_t rank, const Group& group) {
    const auto hook = make_wrapped(group);
    for (int64_t step = 0; step < 2; ++step) average_step(*hook, parameters_, gradients(rank, step));
    const FormerRanks saved{.world_size = world_size_, .states = {hook->state(named(parameters_))}, .first = {}};
    const auto resumed = make_wrapped(group);
    const auto unwrapped = make(group);
    resumed->load_state(saved, named(parameters_));
    unwrapped->load_state(saved, named(parameters_));
    EXPECT_EQ(resumed->payload_bytes_sent(), hook->payload_bytes_sent());
    for (CommHook* const each : {hook.get(), resumed.get(), unwrapped.get()}) each->rescale_state(0.5);
    for (int64_t step = 2; step < 4; ++step) {
      const at::Tensor gradient = gradients(rank, step) * 0.5;
      const at::Tensor expected = average_step(*hook, parameters_, gradient);
      EXPECT_TRUE(at::equal(average_step(*resumed, parameters_, gradient), expected)) << step;
      const at::Tensor rounded = gradient.to(at::kBFloat16);
      EXPECT_TRUE(at::equal(average_step(*unwrapped, parameters_, rounded).to(at::kFloat), expected)) << step;
    }
    EXPECT_EQ(resumed->payload_bytes_sent(), hook->payload_bytes_sent());
  });
}

INSTANTIATE_TEST_SUITE_P(Worlds, WrappedHook,
                         ::testing::Combine(::testing::Values("int8", "var4", "power_sgd"),
                                            ::testing::Values(1, 2, 3, 4)),
                         [](const auto& info) {
                           return std::get<0>(info.param) + "_" + std::to_string(std::get<1>(info.param));
                         });

TEST(WrapInFormat, PassesOnWhetherReplicasStayEqual) {
  run_ranks(2, [](int64_t, const Group& group) {
    const HookOptions options{.process_group = group};
    EXPECT_FALSE(wrap_in_format(create_comm_hook("noop", options), "fp16")->keeps_replicas_equal());
    EXPECT_TRUE(wrap_in_format(create_comm_hook("allreduce", options), "fp16")->keeps_replicas_equal());
    HookOptions local = options;
    local.local.group_size = 1;
    EXPECT_EQ(wrap_in_format(create_comm_hook("post_local_sgd", local), "fp16")->groups(),
              (std::vector<int64_t>{0, 1}));
  });
}

TEST(WrapInFormat, RefusesOtherFormatsAndNull) {
  std::vector<NotingHook::Note> notes;
  const auto wrap = [&](const std::string& format) {
    return error_message<c10::ValueError>(
        [&] { wrap_in_format(std::make_unique<NotingHook>(notes, nullptr), format); });
  };
  EXPECT_EQ(wrap("int8"), "format: must be fp16 or bf16, but is 'int8'");
  EXPECT_EQ(wrap("fp32"), "format: must be fp16 or bf16, but is 'fp32'");
  EXPECT_EQ(wrap(""), "format: must be fp16 or bf16, but is ''");
  EXPECT_EQ(error_message<c10::ValueError>([] { wrap_in_format(nullptr, "fp16"); }),
            "hook to wrap in fp16 must not be null");
}

TEST(WrapInFormat, RefusesAResultOfAnotherShape) {
  std::vector<NotingHook::Note> notes;
  const auto hook =
      wrap_in_format(std::make_unique<NotingHook>(notes, [](const at::Tensor&) { return at::ones({1}); }), "fp16");
  auto bucket = make_bucket(at::ones({4}));
  const auto future = hook->runHook(bucket);
  EXPECT_EQ(error_message<c10::ValueError>([&] { future->waitAndThrow(); }),
            "hook fp16(noting): the result for a bucket of [4] elements has shape [1]");
}

TEST(WrapInFormat, PassesOnWhatTheHookInsideThrows) {
  std::vector<NotingHook::Note> notes;
  const auto hook = wrap_in_format(
      std::make_unique<NotingHook>(notes, [](const at::Tensor&) -> at::Tensor { throw std::runtime_error("lost"); }),
      "fp16");
  const at::Tensor buffer = at::ones({4});
  auto bucket = make_bucket(buffer);
  EXPECT_THAT([&] { hook->runHook(bucket); }, ::testing::ThrowsMessage<std::runtime_error>("lost"));
  EXPECT_TRUE(bucket.getBuffer().is_same(buffer));
  EXPECT_THROW(
      {
        auto whole = make_bucket(at::ones({4}, at::kLong));
        hook->runHook(whole);
      },
      c10::TypeError);
}

}  // namespace
}  // namespace narrowcast::hooks

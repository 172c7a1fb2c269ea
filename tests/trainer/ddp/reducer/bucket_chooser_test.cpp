#include "trainer/ddp/reducer/bucket_chooser.h"

#include <ATen/core/jit_type.h>
#include <c10/util/Exception.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <atomic>
#include <cmath>
#include <memory>
#include <numeric>
#include <optional>
#include <string>
#include <vector>

#include <narrowcast/ddp.h>
#include <narrowcast/hooks.h>
#include "hooks/table/hook_table.h"
#include "tests/support/added_hook_row.h"
#include "tests/support/error_message.h"
#include "tests/support/ranks.h"
#include "tests/trainer/ddp/all/ddp_fixtures.h"
#include "trainer/ddp/reducer/reducer.h"

namespace narrowcast {
namespace {

using namespace testing;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::SizeIs;

constexpr int64_t kWorld = 2;

// Four layers of 1.002 MiB, so that there are sizes to choose from: 1, 2, 3 and 5 MiB.
struct WideNetImpl : torch::nn::Module {
  WideNetImpl() {
    for (int64_t i = 0; i < 4; ++i) {
      layers.push_back(register_module("layer" + std::to_string(i), torch::nn::Linear(512, 512)));
    }
    const at::NoGradGuard no_grad;
    for (size_t i = 0; i < layers.size(); ++i) layers[i]->weight.copy_(seeded_randn(i, {512, 512}) / 32);
  }

  at::Tensor forward(at::Tensor x) {
    for (torch::nn::Linear& layer : layers) x = at::tanh(layer(x));
    return x;
  }

  std::vector<torch::nn::Linear> layers;
};
TORCH_MODULE(WideNet);

using WideDdp = DistributedDataParallel<WideNet>;

Sample wide_sample(int64_t step, int64_t rank) {
  const auto seed = static_cast<uint64_t>(1000 * step + 10 * rank);
  return {seeded_randn(seed, {4, 512}), seeded_randn(seed + 1, {4, 512})};
}

DdpOptions auto_size() { return DdpOptions().bucket_cap_mb(std::nullopt); }

// Makes each rank a node, because on one machine nothing would be sent.
DdpOptions with_feedback(const DdpOptions& options) {
  return DdpOptions(options).hook("int4").wire({.error_feedback = true, .node_size = 1});
}

void pass(WideDdp& ddp, const Sample& sample) {
  ddp.zero_grad();
  ddp.backward(loss_of(ddp.forward(sample.x), sample));
}

void train_step(WideDdp& ddp, const Sample& sample) {
  pass(ddp, sample);
  descend(ddp.module()->parameters(), 0.05);
}

std::string text_of(const BucketNames& buckets) {
  std::string text;
  for (const auto& bucket : buckets) {
    for (const std::string& name : bucket) text += name + " ";
    text += "| ";
  }
  return text;
}

bool same_text_on_all_ranks(const ProcessGroupPtr& group, const std::string& text) {
  const std::vector<std::string> texts = all_gather_text(group, text);
  return std::all_of(texts.begin(), texts.end(), [&](const std::string& other) { return other == text; });
}

TEST(ChoosesBucketSize, WhereThereIsSomethingToChoose) {
  const std::vector<at::Tensor> large = {at::zeros({1 << 19}), at::zeros({1})};  // A float more than 2 MiB.
  EXPECT_TRUE(chooses_bucket_size(auto_size(), large, 2));
  EXPECT_FALSE(chooses_bucket_size(auto_size(), large, 1));
  EXPECT_FALSE(chooses_bucket_size(auto_size(), {large[0]}, 2));
  EXPECT_FALSE(chooses_bucket_size(auto_size(), {large[0], at::zeros({1}, at::device(at::kMeta))}, 2))
      << "not on the CPU";
  EXPECT_FALSE(chooses_bucket_size(DdpOptions().bucket_cap_mb(7), large, 2));
  EXPECT_FALSE(with_first_bucket_size(auto_size(), large, 2).bucket_cap_mb().has_value());
  EXPECT_EQ(with_first_bucket_size(auto_size().hook("int8"), large, 2).bucket_cap_mb(), 4);
  EXPECT_EQ(with_first_bucket_size(auto_size(), large, 1).bucket_cap_mb(), 25);
  EXPECT_EQ(with_first_bucket_size(DdpOptions().bucket_cap_mb(7), large, 1).bucket_cap_mb(), 7);
}

TEST(BucketChooserTest, AllRanksComeToTheSame) {
  run_ranks(3, [](int64_t rank, const ProcessGroupPtr& group) {
    std::vector<NamedTensor> named;
    at::Tensor loss = at::ones({1});
    for (const char* const name : {"a", "b", "c"}) {
      named.push_back({name, at::ones({1 << 18}).requires_grad_(true)});
      loss = loss * named.back().tensor.sum();
    }
    BucketChooser chooser(named, group, auto_size().hook("bf16_compress"));
    for (int64_t i = 0; i < 3; ++i) {
      EXPECT_EQ(chooser.can_choose(), i > 0);
      EXPECT_FALSE(chooser.is_due());
      chooser.begin_pass();
      (loss * (rank + 1)).backward({}, /*retain_graph=*/true);
      chooser.end_pass();
    }
    EXPECT_TRUE(chooser.is_due());
    const BucketChooser::Result result = chooser.choose(nullptr);
    ASSERT_THAT(result.choice.sizes, SizeIs(3));  // 1, 2 and 3 MiB.
    EXPECT_EQ(result.choice.sizes.back().cap_mb, 3);
    EXPECT_EQ(result.choice.size().buckets, std::ssize(result.buckets));
    EXPECT_GE(result.choice.backward_seconds, 0);
    for (const BucketChoice::Size& size : result.choice.sizes) EXPECT_GT(size.seconds_left, 0);
    std::vector<double> numbers = {result.choice.backward_seconds, result.choice.size().cap_mb};
    for (const auto& bucket : result.buckets) {
      for (const size_t index : bucket) numbers.push_back(static_cast<double>(index));
    }
    EXPECT_EQ(all_reduce_max(group, numbers), numbers);
    for (double& number : numbers) number = -number;
    EXPECT_EQ(all_reduce_max(group, numbers), numbers) << "the least is the greatest";
  });
}

// Predicts an hour for a bucket of any size.
class SlowHook final : public hooks::CommHook {
 public:
  std::string_view name() const override { return "slow"; }
  c10::intrusive_ptr<c10::ivalue::Future> runHook(c10d::GradBucket& /*bucket*/) override {
    throw std::logic_error("nothing is to be measured with it");
  }
  std::optional<double> predicted_seconds(int64_t /*numel*/) const override { return 3600; }
};

TEST(BucketChooserTest, AsksAHookThatPredicts) {
  run_ranks(2, [](int64_t /*rank*/, const ProcessGroupPtr& group) {
    const NamedTensor parameter{"a", at::ones({6 << 18}).requires_grad_(true)};
    BucketChooser chooser({parameter}, group, auto_size().hook("int8"));
    for (int64_t i = 0; i < 3; ++i) {
      chooser.begin_pass();
      parameter.tensor.sum().backward();
      chooser.end_pass();
    }
    const SlowHook slow;
    const BucketChoice choice = chooser.choose(&slow).choice;
    EXPECT_NEAR(choice.size().seconds_left, 3600.0 * static_cast<double>(choice.size().buckets), 1e-6);
    EXPECT_EQ(choice.sizes.back().cap_mb, 6);
    EXPECT_EQ(chooser.choose(&slow, hooks::ShardRounding::kOnce).choice.sizes.back().cap_mb, kMostMbOfShards);
  });
}

// Keeps the size of the largest group in which it averaged.
class GroupSizeHook final : public hooks::CommHook {
 public:
  GroupSizeHook(int64_t size, std::atomic<int64_t>& largest) : size_(size), largest_(largest) {}
  std::string_view name() const override { return "group_size"; }
  c10::intrusive_ptr<c10::ivalue::Future> runHook(c10d::GradBucket& bucket) override {
    int64_t largest = largest_;
    while (largest < size_ && !largest_.compare_exchange_weak(largest, size_)) {
    }
    auto future = c10::make_intrusive<c10::ivalue::Future>(c10::TensorType::get());
    future->markCompleted(bucket.getBuffer());
    return future;
  }

 private:
  const int64_t size_;
  std::atomic<int64_t>& largest_;
};

// Measures exchanges in groups, instead of among all ranks as in the first steps. If each rank is a group of one later,
// only the exchanges among all ranks remain.
TEST(BucketChooserTest, MeasuresTheStepsInWhichGroupsAverage) {
  std::atomic<int64_t> largest = 0;
  hooks::HookRow row = hooks::hook_row("allreduce");
  row.name = "group_size";
  row.make = [&](const hooks::HookRow& /*row*/, const hooks::HookOptions& options) {
    return std::make_unique<GroupSizeHook>(options.process_group->getSize(), largest);
  };
  const hooks::AddedHookRow added(row);
  for (const int64_t group_size : {2, 1}) {
    largest = 0;
    run_ranks(4, [&](int64_t /*rank*/, const ProcessGroupPtr& group) {
      const DdpOptions options =
          auto_size().hook("post_local_sgd").local({.start = 100, .group_size = group_size, .hook = "group_size"});
      const NamedTensor parameter{"a", at::ones({3 << 18}).requires_grad_(true)};
      BucketChooser chooser({parameter}, group, options);
      chooser.begin_pass();
      parameter.tensor.sum().backward();
      chooser.end_pass();
      const auto in_use = hooks::create_comm_hook("post_local_sgd", options.hook_options(group));
      chooser.choose(in_use.get());
    });
    EXPECT_EQ(largest, group_size == 2 ? 2 : 4);
  }
}

TEST(AutoBucketsTest, AreChosenBeforeTheFourthForward) {
  run_ranks(kWorld, [](int64_t rank, const ProcessGroupPtr& group) {
    WideDdp ddp(WideNet(), group, auto_size());
    for (int64_t step = 0; step < 6; ++step) {
      EXPECT_EQ(ddp.bucket_choice().has_value(), step > 3) << step;
      EXPECT_EQ(ddp.bucket_bytes().size() > 1, step > 3 && ddp.bucket_choice()->size().buckets > 1) << step;
      train_step(ddp, wide_sample(step, rank));
    }
    EXPECT_TRUE(same_text_on_all_ranks(group, text_of(ddp.state().buckets)));
    EXPECT_EQ(std::ssize(ddp.bucket_bytes()), ddp.bucket_choice()->size().buckets);
    EXPECT_TRUE(same_on_all_ranks(group, ddp.module()->parameters()));
  });
}

TEST(AutoBucketsTest, AreThoseOfTheChosenSizeGivenByHand) {
  run_ranks(kWorld, [](int64_t rank, const ProcessGroupPtr& group) {
    WideDdp chosen(WideNet(), group, auto_size());
    for (int64_t step = 0; step < 4; ++step) train_step(chosen, wide_sample(step, rank));
    WideDdp given(WideNet(), group, DdpOptions().bucket_cap_mb(chosen.bucket_choice()->size().cap_mb));
    for (int64_t step = 0; step < 2; ++step) train_step(given, wide_sample(step, rank));
    EXPECT_EQ(text_of(chosen.state().buckets), text_of(given.state().buckets));
  });
}

TEST(AutoBucketsTest, AreMeasuredWithoutTheMemoryOfTheFormerOnes) {
  std::atomic<int64_t> made = 0;
  std::atomic<int64_t> freed = 0;
  const c10::weak_intrusive_ptr<c10::StorageImpl> nothing{c10::intrusive_ptr<c10::StorageImpl>()};
  std::vector<c10::weak_intrusive_ptr<c10::StorageImpl>> gradients(kWorld, nothing);
  hooks::HookRow row = hooks::hook_row("allreduce");
  row.name = "fails_when_measured";
  row.make = [&](const hooks::HookRow& /*row*/, const hooks::HookOptions& options) {
    if (made++ < kWorld) return hooks::create_comm_hook("allreduce", options);
    freed += gradients[options.process_group->getRank()].expired() ? 1 : 0;
    throw std::runtime_error("it cannot be measured");
  };
  const hooks::AddedHookRow added(row);
  run_ranks(kWorld, [&](int64_t rank, const ProcessGroupPtr& group) {
    WideDdp ddp(WideNet(), group, auto_size().hook("fails_when_measured").gradient_as_bucket_view(true));
    for (int64_t step = 0; step < 3; ++step) train_step(ddp, wide_sample(step, rank));
    gradients[rank] = ddp.module()->parameters()[0].grad().storage().getWeakStorageImpl();
    const std::string buckets = text_of(ddp.state().buckets);
    EXPECT_THROW(pass(ddp, wide_sample(3, rank)), std::runtime_error);
    EXPECT_EQ(text_of(ddp.state().buckets), buckets);
  });
  EXPECT_EQ(freed, kWorld);
}

struct AutoMode {
  std::string name;
  DdpOptions options;
};

class AutoBucketsModeTest : public ::testing::TestWithParam<AutoMode> {};

// Includes passes that accumulate. The mean of two ranks is exact.
TEST_P(AutoBucketsModeTest, AverageExactlyBeforeAndAfterTheChoice) {
  run_ranks(kWorld, [](int64_t rank, const ProcessGroupPtr& group) {
    WideDdp ddp(WideNet(), group, GetParam().options);
    const std::vector<at::Tensor> parameters = ddp.module()->parameters();
    for (int64_t step = 0; step < 6; ++step) {
      std::vector<std::vector<at::Tensor>> expected;
      for (int64_t other = 0; other < kWorld; ++other) {
        const Sample sample = wide_sample(step, other);
        expected.push_back(gradients_of(loss_of(ddp.module()->forward(sample.x), sample), parameters));
      }
      pass(ddp, wide_sample(step, rank));
      for (size_t i = 0; i < parameters.size(); ++i) {
        EXPECT_TRUE(is_mean_over_ranks(parameters[i].grad(), {expected[0][i], expected[1][i]})) << step << " " << i;
      }
      descend(parameters, 0.05);
      const auto unsynchronised = ddp.no_sync();
      ddp.backward(loss_of(ddp.forward(wide_sample(step, rank).x), wide_sample(step, rank)));
    }
    EXPECT_TRUE(ddp.bucket_choice().has_value());
    EXPECT_TRUE(same_on_all_ranks(group, parameters));
  });
}

INSTANTIATE_TEST_SUITE_P(
    Modes, AutoBucketsModeTest,
    ::testing::Values(AutoMode{"plain", auto_size()}, AutoMode{"hook", auto_size().hook("allreduce")},
                      AutoMode{"unused", auto_size().find_unused_parameters(true)},
                      AutoMode{"static", auto_size().static_graph(true)},
                      AutoMode{"views", auto_size().gradient_as_bucket_view(true)},
                      AutoMode{"unused_views", auto_size().find_unused_parameters(true).gradient_as_bucket_view(true)}),
    [](const auto& info) { return info.param.name; });

TEST(AutoBucketsTest, AreChosenWhenTheyMustSettle) {
  run_ranks(kWorld, [](int64_t rank, const ProcessGroupPtr& group) {
    WideDdp ddp(WideNet(), group, with_feedback(auto_size()));
    EXPECT_FALSE(ddp.settle_buckets()) << "nothing is known before the first step";
    train_step(ddp, wide_sample(0, rank));
    EXPECT_TRUE(ddp.settle_buckets());
    ASSERT_TRUE(ddp.bucket_choice().has_value());
    const std::string buckets = text_of(ddp.state().buckets);
    for (int64_t step = 1; step < 6; ++step) train_step(ddp, wide_sample(step, rank));
    EXPECT_TRUE(ddp.settle_buckets());
    EXPECT_EQ(text_of(ddp.state().buckets), buckets);
    EXPECT_TRUE(same_on_all_ranks(group, ddp.module()->parameters()));
  });
}

TEST(AutoBucketsTest, AreTakenUpBitForBit) {
  run_ranks(kWorld, [](int64_t rank, const ProcessGroupPtr& group) {
    WideDdp first(WideNet(), group, with_feedback(auto_size()));
    for (int64_t step = 0; step < 5; ++step) train_step(first, wide_sample(step, rank));
    const ReducerState state = first.state();
    WideDdp again(WideNet(), group, with_feedback(auto_size()));
    WideDdp given(WideNet(), group, with_feedback(DdpOptions().bucket_cap_mb(first.bucket_choice()->size().cap_mb)));
    for (WideDdp* const ddp : {&again, &given}) {
      const at::NoGradGuard no_grad;
      const auto from = first.module()->parameters();
      const auto to = ddp->module()->parameters();
      for (size_t i = 0; i < from.size(); ++i) to[i].copy_(from[i]);
      ReducerState copy = state;
      for (auto& [name, tensor] : copy.hook.states[0]) tensor = tensor.clone();
      ddp->load_state(copy);
    }
    for (int64_t step = 5; step < 10; ++step) {
      for (WideDdp* const ddp : {&first, &again, &given}) {
        EXPECT_EQ(text_of(ddp->state().buckets), text_of(state.buckets));
        train_step(*ddp, wide_sample(step, rank));
        EXPECT_EQ(bytes_of(ddp->module()->parameters()), bytes_of(first.module()->parameters())) << step;
      }
    }
    EXPECT_FALSE(again.bucket_choice().has_value()) << "decided in the run before";
  });
}

TEST(AutoBucketsTest, AreChosenAnewInAnotherWorld) {
  run_ranks(kWorld, [](int64_t rank, const ProcessGroupPtr& group) {
    WideDdp ddp(WideNet(), group, auto_size());
    ReducerState state = ddp.state();
    state.hook.world_size = 3;
    ddp.load_state(state);
    for (int64_t step = 0; step < 4; ++step) train_step(ddp, wide_sample(step, rank));
    EXPECT_TRUE(ddp.bucket_choice().has_value());
  });
}

// With the same gradients in each of n steps, n times the exact mean minus the sum of means is at most the mean of the
// last residuals. If the change of buckets had lost residuals, it would be more.
TEST(AutoBucketsTest, ResidualsGoWithTheirParameters) {
  run_ranks(kWorld, [](int64_t rank, const ProcessGroupPtr& group) {
    constexpr int64_t kPasses = 5;
    WideDdp ddp(WideNet(), group, with_feedback(auto_size()));
    std::vector<at::Tensor> lacking;
    const Sample sample = wide_sample(0, rank);
    for (const at::Tensor& own :
         gradients_of(loss_of(ddp.module()->forward(sample.x), sample), ddp.module()->parameters())) {
      std::vector<at::Tensor> mean = {own.to(at::kDouble) / kWorld};
      group->allreduce(mean)->wait();
      lacking.push_back(mean[0] * kPasses);
    }
    for (int64_t i = 0; i < kPasses; ++i) {
      pass(ddp, sample);
      for (size_t p = 0; p < lacking.size(); ++p) lacking[p] -= ddp.module()->parameters()[p].grad();
    }
    ASSERT_TRUE(ddp.bucket_choice().has_value());
    const auto named = ddp.module()->named_parameters();
    const hooks::HookState state = ddp.state().hook.own();
    for (size_t p = 0; p < lacking.size(); ++p) {
      std::vector<at::Tensor> owed = {state.at("residual." + named[p].key()).to(at::kDouble) / kWorld};
      group->allreduce(owed)->wait();
      // A pass rounds to float32 when it adds the residual, subtracts the code, averages and divides: at most four
      // times. Each rounding error is at most 2^-24 times twice the greatest gradient, since residuals are less than
      // gradients.
      const double greatest =
          lacking[p].abs().max().item<double>() + ddp.module()->parameters()[p].grad().abs().max().item<double>();
      const double tolerance = kPasses * 4 * 2 * 0x1p-24 * kWorld * greatest;
      EXPECT_LE((lacking[p].flatten() - owed[0]).abs().max().item<double>(), tolerance) << named[p].key();
      EXPECT_GT(owed[0].abs().max().item<double>(), tolerance) << "nothing was rounded";
    }
  });
}

TEST(AutoBucketsTest, NeedAHookThatIsKnownByName) {
  run_ranks(kWorld, [](int64_t /*rank*/, const ProcessGroupPtr& group) {
    WideDdp ddp(WideNet(), group, auto_size());
    EXPECT_THAT(error_message<c10::ValueError>(
                    [&] { ddp.register_comm_hook(hooks::create_comm_hook("allreduce", {.process_group = group})); }),
                HasSubstr("bucket_cap_mb: auto cannot measure hook allreduce"));
    EXPECT_EQ(ddp.hook_name(), "none");
  });
}

}  // namespace
}  // namespace narrowcast

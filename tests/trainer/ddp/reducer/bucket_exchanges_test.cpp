// Tests the buckets that the Reducer passes to hooks, and the wait for their futures.
#include "trainer/ddp/reducer/bucket_exchanges.h"

#include <ATen/core/ivalue.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <chrono>
#include <memory>
#include <string>
#include <tuple>
#include <utility>
#include <vector>

#include <narrowcast/ddp.h>
#include <narrowcast/network_errors.h>
#include "ops/common/error_message.h"
#include "tests/support/error_message.h"
#include "tests/support/ranks.h"
#include "tests/trainer/ddp/all/ddp_fixtures.h"
#include "trainer/ddp/reducer/backward_watch.h"
#include "trainer/ddp/reducer/reducer.h"

namespace narrowcast {
namespace {

using namespace testing;
using ::testing::HasSubstr;
using ::testing::SizeIs;
using Future = c10::ivalue::Future;

c10::intrusive_ptr<Future> open_future() { return c10::make_intrusive<Future>(c10::TensorType::get()); }

c10::intrusive_ptr<Future> completed_with(const at::Tensor& value) {
  auto future = open_future();
  future->markCompleted(value);
  return future;
}

// A bucket as it was passed to the hook.
struct GivenBucket {
  size_t index;
  bool is_last;
  std::vector<at::Tensor> parameters;
  std::vector<at::Tensor> gradients;  // Copies.
};

// Leaves gradients unchanged.
class GivenBucketsHook : public hooks::CommHook {
 public:
  explicit GivenBucketsHook(std::vector<GivenBucket>& given) : given_(given) {}
  std::string_view name() const override { return "given_buckets"; }

  c10::intrusive_ptr<Future> runHook(c10d::GradBucket& bucket) override {
    std::vector<at::Tensor> copies;
    for (const at::Tensor& gradient : bucket.getGradients()) copies.push_back(gradient.clone());
    given_.push_back({bucket.getIndex(), bucket.isLast(), bucket.getParameters(), std::move(copies)});
    return completed_with(bucket.getBuffer());
  }

 private:
  std::vector<GivenBucket>& given_;
};

// Two layers of the same shape, so that neighbouring buckets can be mistaken for each other, and one in float64.
struct MixedNetImpl : torch::nn::Module {
  explicit MixedNetImpl(bool mixed) {
    first = register_module("first", torch::nn::Linear(8, 8));
    second = register_module("second", torch::nn::Linear(8, 8));
    last = register_module("last", torch::nn::Linear(8, 4));
    if (mixed) last->to(at::kDouble);
  }
  at::Tensor forward(const at::Tensor& x) {
    const at::Tensor y = second(at::tanh(first(x)));
    return last(y.to(last->weight.scalar_type())).to(at::kFloat);
  }
  torch::nn::Linear first{nullptr}, second{nullptr}, last{nullptr};
};
TORCH_MODULE(MixedNet);

using RecordedDdp = DistributedDataParallel<MixedNet>;

// Runs a step and expects buckets that are numbered from 0, mark the last one, and hold the gradients of their
// parameters.
void expect_numbered(RecordedDdp& ddp, std::vector<GivenBucket>& given, const Sample& sample) {
  given.clear();
  ddp.zero_grad();
  ddp.backward(loss_of(ddp.forward(sample.x), sample));
  size_t parameters = 0;
  for (size_t i = 0; i < given.size(); ++i) {
    EXPECT_EQ(given[i].index, i);
    EXPECT_EQ(given[i].is_last, i + 1 == given.size());
    ASSERT_EQ(given[i].parameters.size(), given[i].gradients.size());
    parameters += given[i].parameters.size();
    for (size_t p = 0; p < given[i].parameters.size(); ++p) {
      EXPECT_TRUE(at::equal(given[i].gradients[p], given[i].parameters[p].grad())) << "bucket " << i << ", " << p;
    }
  }
  EXPECT_EQ(parameters, ddp.module()->parameters().size());
}

class NumberedBucketsTest : public ::testing::TestWithParam<std::tuple<Mode, bool>> {};

TEST_P(NumberedBucketsTest, InEveryPassFreshAndResumed) {
  const auto& [mode, mixed] = GetParam();
  run_ranks(1, [&, &options = mode.options, mixed = mixed](int64_t /*rank*/, const ProcessGroupPtr& group) {
    std::vector<GivenBucket> given;
    RecordedDdp fresh(MixedNet(mixed), group, options);
    fresh.register_comm_hook(std::make_unique<GivenBucketsHook>(given));
    for (int64_t step = 0; step < 3; ++step) expect_numbered(fresh, given, sample_of(step, 0));
    const size_t buckets = given.size();
    RecordedDdp resumed(MixedNet(mixed), group, options);
    resumed.register_comm_hook(std::make_unique<GivenBucketsHook>(given));
    resumed.load_state(fresh.state());
    for (int64_t step = 0; step < 3; ++step) {
      expect_numbered(resumed, given, sample_of(step, 0));
      EXPECT_THAT(given, SizeIs(buckets)) << "step " << step;
    }
  });
}

INSTANTIATE_TEST_SUITE_P(Modes, NumberedBucketsTest,
                         ::testing::Combine(::testing::ValuesIn(all_modes()), ::testing::Bool()), [](const auto& info) {
                           return std::get<0>(info.param).name + (std::get<1>(info.param) ? "_mixed" : "");
                         });

// A wrong custom hook: one of its buckets gets `future`.
class WrongHook : public hooks::CommHook {
 public:
  WrongHook(size_t bucket, c10::intrusive_ptr<Future> future) : bucket_(bucket), future_(std::move(future)) {}
  std::string_view name() const override { return "wrong"; }
  c10::intrusive_ptr<Future> runHook(c10d::GradBucket& bucket) override {
    return bucket.getIndex() == bucket_ ? future_ : completed_with(bucket.getBuffer());
  }

 private:
  const size_t bucket_;
  const c10::intrusive_ptr<Future> future_;
};

// The modes in which the first pass has a bucket 1, and one that delays its reduction.
std::vector<DdpOptions> modes_of_wrong_hooks() {
  return {DdpOptions().find_unused_parameters(true).bucket_cap_mb(kTinyMb), DdpOptions().static_graph(true)};
}

std::string message_of_pass(const DdpOptions& options, const ProcessGroupPtr& group,
                            c10::intrusive_ptr<Future> future) {
  DistributedDataParallel ddp(MixedNet(/*mixed=*/true), group, options);
  ddp.register_comm_hook(std::make_unique<WrongHook>(1, std::move(future)));
  const Sample sample = sample_of(0, 0);
  const at::Tensor loss = loss_of(ddp.forward(sample.x), sample);
  return error_message<c10::Error>([&] { ddp.backward(loss); });
}

TEST(BucketExchangesTest, AFutureThatIsNeverCompletedIsATimeOut) {
  for (const DdpOptions& options : modes_of_wrong_hooks()) {
    run_ranks(1,
              [&](int64_t /*rank*/, const ProcessGroupPtr& group) {
                EXPECT_EQ(
                    message_of_pass(options, group, open_future()),
                    "rank 0: hook wrong failed: timed out: the future of bucket 1 was not completed within 200 ms");
              },
              {.timeout = std::chrono::milliseconds(200)});
  }
}

TEST(BucketExchangesTest, AMissingFutureIsAnError) {
  for (const DdpOptions& options : modes_of_wrong_hooks()) {
    run_ranks(1, [&](int64_t /*rank*/, const ProcessGroupPtr& group) {
      EXPECT_EQ(message_of_pass(options, group, nullptr), "hook wrong: returned no future for bucket 1");
    });
  }
}

TEST(BucketExchangesTest, AFailedFutureIsItsOwnError) {
  for (const DdpOptions& options : modes_of_wrong_hooks()) {
    run_ranks(1, [&](int64_t /*rank*/, const ProcessGroupPtr& group) {
      auto future = open_future();
      future->setError(std::make_exception_ptr(std::runtime_error("on purpose")));
      DistributedDataParallel ddp(MixedNet(/*mixed=*/true), group, options);
      ddp.register_comm_hook(std::make_unique<WrongHook>(1, future));
      const at::Tensor loss = ddp.forward(sample_of(0, 0).x).sum();
      EXPECT_THAT(failure_of([&] { ddp.backward(loss); }), HasSubstr("on purpose"));
    });
  }
}

TEST(BucketExchangesTest, ATimeOutIsKnownAsOneAndEndsTheTraining) {
  run_ranks(1,
            [&](int64_t /*rank*/, const ProcessGroupPtr& group) {
              DistributedDataParallel ddp(MixedNet(/*mixed=*/true), group, modes_of_wrong_hooks()[0]);
              ddp.register_comm_hook(std::make_unique<WrongHook>(0, open_future()));
              const at::Tensor loss = ddp.forward(sample_of(0, 0).x).sum();
              try {
                ddp.backward(loss);
                ADD_FAILURE() << "no error";
              } catch (const std::exception& error) {
                EXPECT_TRUE(is_time_out(error));
              }
              EXPECT_THAT(error_message<c10::ValueError>([&] { ddp.forward(sample_of(0, 0).x); }),
                          HasSubstr("the last backward pass did not end"));
            },
            {.timeout = std::chrono::milliseconds(200)});
}

// A backward pass of a Reducer with three buckets, which holds them until the last one is ready.
void held_pass(const ProcessGroupPtr& group, MixedNet& net, std::shared_ptr<hooks::CommHook> hook) {
  std::vector<NamedTensor> parameters;
  for (const auto& named : net->named_parameters()) parameters.push_back({named.key(), named.value()});
  const auto reducer = make_reducer(parameters, group, DdpOptions(), {{4, 5}, {2, 3}, {0, 1}});
  const auto exchanges = std::make_shared<BucketExchanges>(std::move(hook), BucketExchanges::Options());
  exchanges->hold_until_last();
  exchanges->register_with(*reducer);
  const Sample sample = sample_of(0, 0);
  reducer->prepare_for_forward();
  const at::Tensor loss = loss_of(net->forward(sample.x), sample);
  reducer->prepare_for_backward({});
  loss.backward();
}

TEST(BucketExchangesTest, HeldBucketsComeInOrderWhenAllGradientsAreReady) {
  run_ranks(1, [](int64_t /*rank*/, const ProcessGroupPtr& group) {
    MixedNet net(/*mixed=*/true);
    size_t ready = 0;
    const AccumulatorHooks counter(net->parameters(), [&](size_t /*index*/) { ++ready; });
    struct CountingHook final : GivenBucketsHook {
      CountingHook(std::vector<GivenBucket>& given, const size_t& ready) : GivenBucketsHook(given), ready_(ready) {}
      c10::intrusive_ptr<Future> runHook(c10d::GradBucket& bucket) override {
        EXPECT_EQ(ready_, 6U) << "bucket " << bucket.getIndex();
        return GivenBucketsHook::runHook(bucket);
      }
      const size_t& ready_;
    };
    std::vector<GivenBucket> given;
    held_pass(group, net, std::make_shared<CountingHook>(given, ready));
    ASSERT_THAT(given, SizeIs(3));
    for (size_t i = 0; i < given.size(); ++i) {
      EXPECT_EQ(given[i].index, i);
      EXPECT_EQ(given[i].is_last, i == 2);
      for (size_t p = 0; p < given[i].parameters.size(); ++p) {
        EXPECT_TRUE(at::equal(given[i].gradients[p], given[i].parameters[p].grad())) << "bucket " << i << ", " << p;
      }
    }
  });
}

TEST(BucketExchangesTest, AFailedFutureOfAHeldBucketIsItsOwnError) {
  run_ranks(1, [](int64_t /*rank*/, const ProcessGroupPtr& group) {
    auto future = open_future();
    future->setError(std::make_exception_ptr(std::runtime_error("on purpose")));
    MixedNet net(/*mixed=*/true);
    EXPECT_THAT(failure_of([&] { held_pass(group, net, std::make_shared<WrongHook>(1, future)); }),
                HasSubstr("on purpose"));
  });
}

}  // namespace
}  // namespace narrowcast

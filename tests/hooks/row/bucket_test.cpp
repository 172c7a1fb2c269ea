#include "hooks/row/bucket.h"

#include <ATen/ATen.h>
#include <ATen/core/ivalue.h>
#include <ATen/core/jit_type.h>
#include <c10/core/Allocator.h>
#include <c10/core/CPUAllocator.h>
#include <gtest/gtest.h>

#include <atomic>
#include <chrono>
#include <future>
#include <memory>
#include <optional>
#include <stdexcept>
#include <vector>

#include <narrowcast/errors.h>
#include <narrowcast/hooks.h>
#include "tests/hooks/all/bucket.h"
#include "tests/support/error_message.h"
#include "tests/support/patience.h"
#include "tests/support/ranks.h"

namespace narrowcast::hooks {
namespace {

using Group = c10::intrusive_ptr<c10d::ProcessGroup>;

TEST(OneDimensional, AreParametersWithOneDimensionOrNone) {
  EXPECT_TRUE(is_one_dimensional(at::ones({})));
  EXPECT_TRUE(is_one_dimensional(at::ones({3})));
  EXPECT_FALSE(is_one_dimensional(at::ones({3, 1})));
}

// Parameters a [2], empty [0] and b [3] of a bucket, in any order.
TEST(SavedLayout, IsInTheOrderOfTheBucket) {
  const NamedParameter a{"a", at::ones({2})};
  const NamedParameter empty{"empty", at::ones({0})};
  const NamedParameter b{"b", at::ones({3, 1})};
  ParameterRanges ranges;
  insert_parameter(ranges, b, 2);
  EXPECT_EQ(gap_in(ranges), 0);
  insert_parameter(ranges, a, 0);
  insert_parameter(ranges, empty, 2);
  EXPECT_EQ(ranges, (ParameterRanges{{a.tensor.unsafeGetTensorImpl(), {0, 2}, true},
                                     {empty.tensor.unsafeGetTensorImpl(), {2, 0}, true},
                                     {b.tensor.unsafeGetTensorImpl(), {2, 3}, false}}));
  EXPECT_EQ(gap_in(ranges), std::nullopt);
  insert_parameter(ranges, a, 7);
  EXPECT_EQ(gap_in(ranges), 5);
}

TEST(SavedPlace, IsOfSoManyNumbersThatAreNotNegative) {
  const auto place_of = [](const at::Tensor& place) { return place_in({{"place.a", place}}, "a", 2, 3); };
  EXPECT_EQ(place_of(at::tensor({1, 5}, at::kLong)), (std::vector<int64_t>{1, 5}));
  EXPECT_EQ(place_of(at::tensor({1, 5, 0}, at::kLong)), (std::vector<int64_t>{1, 5, 0}));
  for (const at::Tensor& wrong : {at::zeros({1}, at::kLong), at::zeros({4}, at::kLong), at::zeros({2}, at::kInt),
                                  at::tensor({0, -1}, at::kLong)}) {
    EXPECT_EQ(testing::error_message<CorruptInputError>([&] { place_of(wrong); }),
              "the hook's state 'place.a' is not a valid place");
  }
}

TEST(ParameterNames, AreThoseOfTheGivenParameters) {
  const std::vector<NamedParameter> given{{"a", at::ones({2})}, {"b", at::ones({3})}};
  const ParameterNames names(given);
  EXPECT_EQ(names.at(given[1].tensor.unsafeGetTensorImpl()), "b");
  const at::Tensor other = at::ones({2});
  EXPECT_EQ(testing::error_message<c10::ValueError>([&] { names.at(other.unsafeGetTensorImpl()); }),
            "the hook has state of a parameter that is not among the 2 given ones, 'a' to 'b': give the parameters of "
            "the model with this hook, also those that are frozen now");
}

TEST(SavedParameters, AreAllKnown) {
  const std::vector<NamedParameter> given{{"a", at::ones({2})}, {"b.c", at::ones({3})}};
  const auto check = [&](const std::vector<HookState>& states, const HookState& first) {
    check_saved_parameters({.world_size = 2, .states = states, .first = first}, given, {"residual.", "q."});
  };
  const at::Tensor any = at::ones({2});
  check({{{"residual.a", any}, {"q.b.c", any}, {"place.d", any}, {"step", any}}}, {});
  EXPECT_EQ(testing::error_message<c10::ValueError>([&] {
              check({{{"residual.a", any}}, {{"residual.d", any}, {"q.c", any}, {"q.d", any}}}, {{"q.b", any}});
            }),
            "the saved state is of parameters that the model does not have: 'b', 'c', 'd'");
}

// A bucket of complex parameters holds their parts as numbers, and counts elements.
TEST(ComplexParameters, HaveTwoNumbersForEachElement) {
  const std::vector<at::Tensor> parameters{at::zeros({4, 5}, at::kComplexFloat), at::zeros({3}, at::kComplexFloat),
                                           at::zeros({}, at::kComplexFloat)};
  const c10d::GradBucket bucket(0, 1, at::zeros({48}), {0, 20, 23}, {20, 3, 1},
                                {parameters[0].sizes(), parameters[1].sizes(), parameters[2].sizes()}, parameters,
                                std::nullopt);
  EXPECT_EQ(parameter_ranges(bucket), (ParameterRanges{{parameters[0].unsafeGetTensorImpl(), {0, 40}, false},
                                                       {parameters[1].unsafeGetTensorImpl(), {40, 6}, true},
                                                       {parameters[2].unsafeGetTensorImpl(), {46, 2}, true}}));
  EXPECT_EQ(real_sizes(parameters[0]), (std::vector<int64_t>{4, 10}));
  EXPECT_EQ(real_sizes(parameters[2]), (std::vector<int64_t>{2}));
  EXPECT_EQ(real_sizes(at::zeros({4, 5})), (std::vector<int64_t>{4, 5}));
  EXPECT_TRUE(real_sizes(at::zeros({})).empty());
}

TEST(SparseBucket, IsRefused) {
  const c10d::GradBucket bucket = make_bucket(at::eye(3).to_sparse(), 2, 3);
  EXPECT_EQ(testing::error_message<c10::ValueError>([&] { check_bucket("int8", bucket); }),
            "int8: bucket 2 holds sparse gradients, but this hook averages only dense ones: create the module without "
            "sparse gradients, or use the hook allreduce or bf16_compress");
}

// A parameter may move from any bucket to any later one of the step, so all of these are reported.
TEST(NewBuckets, AreFoundUntilTheEndOfTheStep) {
  NewBuckets layouts;
  const at::Tensor a = at::ones({2});
  const ParameterRanges usual{{a.unsafeGetTensorImpl(), {0, 2}, true}};
  const auto step = [&](const std::vector<int64_t>& sizes, const ParameterRanges& of_second) {
    std::vector<bool> found;
    for (size_t i = 0; i < sizes.size(); ++i) {
      const auto bucket = make_bucket(at::ones({sizes[i]}), i, sizes.size());
      found.push_back(layouts.notice(bucket, i == 1 ? of_second : usual));
    }
    return found;
  };
  using Found = std::vector<bool>;
  EXPECT_EQ(step({2, 2, 2}, usual), Found({true, true, true}));
  EXPECT_EQ(step({2, 2, 2}, usual), Found({false, false, false}));
  EXPECT_EQ(step({2, 3, 2}, usual), Found({false, true, true}));
  EXPECT_EQ(step({2, 3, 2}, {}), Found({false, true, true}));
  EXPECT_EQ(step({2, 3, 2}, {}), Found({false, false, false}));
}

LastExchange::FuturePtr tensor_future() { return c10::make_intrusive<c10::ivalue::Future>(c10::TensorType::get()); }

TEST(LastExchange, IsWaitedForUntilItIsCompleted) {
  LastExchange last;
  last.wait();  // There is none.
  const auto future = tensor_future();
  EXPECT_EQ(last.set(future), future);
  auto waiting = std::async(std::launch::async, [&] { last.wait(); });
  EXPECT_EQ(waiting.wait_for(std::chrono::milliseconds(50)), std::future_status::timeout);
  future->markCompleted(at::ones({3}));
  waiting.get();
}

TEST(LastExchange, ThatHasFailedIsOver) {
  LastExchange last;
  const auto future = tensor_future();
  last.set(future);
  future->setError(std::make_exception_ptr(std::runtime_error("on purpose")));
  last.wait();
}

TEST(LastExchange, DoesNotKeepItsTensorAlive) {
  LastExchange last;
  const at::Tensor tensor = at::ones({3});
  last.set(tensor_future())->markCompleted(tensor);
  last.wait();
  EXPECT_EQ(tensor.use_count(), 1);
  EXPECT_EQ(tensor.storage().use_count(), 1);
}

TEST(PerBucket, KeepsScratchUntilTheBucketChanges) {
  PerBucket<int> scratch;
  int made = 0;
  const auto get = [&](const at::Tensor& buffer, size_t index) {
    return scratch.get(make_bucket(buffer, index, 8), [&] { return ++made; });
  };
  EXPECT_EQ(get(at::ones({3}), 0), 1);
  EXPECT_EQ(get(at::ones({3}), 1), 2);
  EXPECT_EQ(get(at::zeros({3}), 0), 1) << "another buffer of the same kind";
  EXPECT_EQ(get(at::ones({4}), 0), 3);
  EXPECT_EQ(get(at::ones({4}, at::kHalf), 0), 4);
  EXPECT_EQ(get(at::empty({4}, at::dtype(at::kHalf).device(at::kMeta)), 0), 5);
  EXPECT_EQ(get(at::ones({3}), 1), 2);
}

TEST(PerBucket, DropsBucketsThatNoLongerExist) {
  PerBucket<std::shared_ptr<int>> scratch;
  const auto make = [] { return std::make_shared<int>(0); };
  const std::weak_ptr<int> third = scratch.get(make_bucket(at::ones({3}), 2, 3), make);
  scratch.get(make_bucket(at::ones({3}), 0, 2), make);
  EXPECT_FALSE(third.expired());
  scratch.get(make_bucket(at::ones({3}), 1, 2), make);
  EXPECT_TRUE(third.expired());
}

// Counts large allocations of tensor memory; scalars do not count.
class CountingAllocator final : public c10::Allocator {
 public:
  c10::DataPtr allocate(size_t bytes) override {
    if (bytes >= kLarge) ++large_;
    return c10::GetDefaultCPUAllocator()->allocate(bytes);
  }
  c10::DeleterFnPtr raw_deleter() const override { return c10::GetDefaultCPUAllocator()->raw_deleter(); }
  void copy_data(void* to, const void* from, size_t bytes) const override { default_copy_data(to, from, bytes); }
  int large() const { return large_; }

 private:
  static constexpr size_t kLarge = 256;
  std::atomic<int> large_{0};
};

class BufferReuse : public ::testing::TestWithParam<std::string> {};

TEST_P(BufferReuse, NothingIsAllocatedAfterTheSecondStep) {
  static CountingAllocator counter;  // LibTorch keeps the pointer.
  c10::SetCPUAllocator(&counter, 1);
  testing::run_ranks(2, [](int64_t, const Group& group) {
    const auto hook = create_comm_hook(GetParam(), {group});
    const auto gradients = std::vector<at::Tensor>{at::ones({5000}), at::ones({300}), at::ones({2'000'000})};
    const auto step = [&] {
      std::vector<c10::intrusive_ptr<c10::ivalue::Future>> futures;
      for (size_t index = 0; index < gradients.size(); ++index) {
        auto bucket = make_bucket(gradients[index], index, gradients.size());
        futures.push_back(hook->runHook(bucket));
      }
      for (const auto& future : futures) future->waitAndThrow();
      testing::wait_for_ranks(group);  // So that the other rank's allocations are counted.
    };
    step();
    step();
    const int before = counter.large();
    testing::wait_for_ranks(group);
    step();
    EXPECT_EQ(counter.large(), before);
  });
  c10::SetCPUAllocator(c10::GetDefaultCPUAllocator(), 1);
}

// The thread that completes a future releases it a moment later.
TEST_P(BufferReuse, NoBucketIsKeptOnceItsFutureIsReleased) {
  testing::run_ranks(2, [](int64_t, const Group& group) {
    const auto hook = create_comm_hook(GetParam(), {group});
    auto kept = c10::weak_intrusive_ptr<c10::StorageImpl>(c10::intrusive_ptr<c10::StorageImpl>());
    {
      const at::Tensor gradient = at::ones({1000});
      auto bucket = make_bucket(gradient);
      hook->runHook(bucket)->waitAndThrow();
      kept = gradient.storage().getWeakStorageImpl();
    }
    const auto end = std::chrono::steady_clock::now() + std::chrono::seconds(20);
    while (!kept.expired() && std::chrono::steady_clock::now() < end) testing::pause_between_looks();
    EXPECT_TRUE(kept.expired());
  });
}

INSTANTIATE_TEST_SUITE_P(Hooks, BufferReuse, ::testing::ValuesIn([] {
                           auto names = comm_hook_names();
                           names.erase(names.begin());  // "none" is not a hook.
                           return names;
                         }()));

}  // namespace
}  // namespace narrowcast::hooks

#include "trainer/ddp/reducer/reducer.h"

#include <ATen/ATen.h>
#include <ATen/ops/zeros.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <torch/csrc/autograd/autograd.h>

#include <narrowcast/errors.h>
#include "tests/support/error_message.h"
#include "tests/support/ranks.h"

namespace narrowcast {
namespace {

using ::testing::ElementsAre;
using testing::error_message;
using testing::run_ranks;

std::vector<NamedTensor> parameters(int64_t numel = 2) {
  std::vector<NamedTensor> named;
  for (const char* const name : {"a", "b", "c"}) {
    named.push_back({name, at::zeros({numel}).requires_grad_()});
  }
  return named;
}

TEST(MakeReducer, BucketsAreNamedInTheOrderOfSending) {
  run_ranks(1, [](int64_t, const ProcessGroupPtr& group) {
    const std::vector<NamedTensor> named = parameters();
    // Two floats per parameter: a megabyte is 2^20 bytes.
    const auto options =
        DdpOptions().find_unused_parameters(true).bucket_cap_mb(16.0 / (1 << 20)).first_bucket_mb(8.0 / (1 << 20));
    const auto reducer = make_reducer(named, group, options, first_buckets(named, options));
    EXPECT_THAT(bucket_names(*reducer, named), ElementsAre(ElementsAre("b", "c"), ElementsAre("a")));
    reducer->initialize_buckets(bucket_indices({{"c"}, {"a", "b"}}, named));
    EXPECT_THAT(bucket_names(*reducer, named), ElementsAre(ElementsAre("c"), ElementsAre("a", "b")));
  });
}

TEST(FirstBuckets, AreOneUnlessTheyMustBeRightAtOnce) {
  const std::vector<NamedTensor> named = parameters();
  const auto tiny = DdpOptions().bucket_cap_mb(1e-9);
  EXPECT_THAT(first_buckets(named, tiny), ElementsAre(ElementsAre(0, 1, 2)));
  const auto unused = DdpOptions(tiny).find_unused_parameters(true);
  EXPECT_THAT(first_buckets(named, unused), ElementsAre(ElementsAre(2), ElementsAre(1), ElementsAre(0)));
  EXPECT_THAT(first_buckets(named, DdpOptions(unused).bucket_cap_mb(std::nullopt)), ElementsAre(ElementsAre(0, 1, 2)));
}

// Three parameters of 3 MiB. A bucket closes when it reaches its cap.
TEST(FirstBuckets, AreAsSmallAsLaterOnesOrFourMebibytes) {
  const std::vector<NamedTensor> named = parameters(int64_t{3} << 18);
  const auto of = [&](const DdpOptions& options) { return first_buckets(named, options); };
  const auto two = ElementsAre(ElementsAre(2), ElementsAre(0, 1));
  EXPECT_THAT(of(DdpOptions().bucket_cap_mb(1)), two);
  EXPECT_THAT(of(DdpOptions().bucket_cap_mb(7)), ElementsAre(ElementsAre(0, 1, 2)));
  EXPECT_THAT(of(DdpOptions().bucket_cap_mb(std::nullopt)), ElementsAre(ElementsAre(0, 1, 2)));
}

TEST(FillBuckets, FollowTheOrderUpToTheirCaps) {
  const std::vector<at::Tensor> tensors = tensors_of(parameters());
  const auto caps = DdpOptions().bucket_cap_mb(16.0 / (1 << 20)).first_bucket_mb(8.0 / (1 << 20));
  EXPECT_THAT(fill_buckets(tensors, {1, 2, 0}, caps), ElementsAre(ElementsAre(1), ElementsAre(2, 0)));
  EXPECT_THAT(fill_buckets(tensors, {0, 2, 1}, DdpOptions()), ElementsAre(ElementsAre(0, 2, 1)));
}

TEST(FillBuckets, AreInTheOrderInWhichTheyAreFull) {
  std::vector<at::Tensor> tensors = tensors_of(parameters());
  tensors.push_back(at::zeros({2}, at::kDouble));
  EXPECT_THAT(fill_buckets(tensors, {0, 3, 1, 2}, DdpOptions()), ElementsAre(ElementsAre(3), ElementsAre(0, 1, 2)));
  EXPECT_THAT(fill_buckets(tensors, {0, 1, 2, 3}, DdpOptions()), ElementsAre(ElementsAre(0, 1, 2), ElementsAre(3)));
}

TEST(BucketIndices, EveryParameterIsInOneBucket) {
  const std::vector<NamedTensor> named = parameters();
  EXPECT_THAT(bucket_indices({{"c", "a"}, {"b"}}, named), ElementsAre(ElementsAre(2, 0), ElementsAre(1)));
  const auto complaint = [&](const BucketNames& names) {
    return error_message<CorruptInputError>([&] { bucket_indices(names, named); });
  };
  EXPECT_EQ(complaint({{"c", "a"}}), "parameter 'b' is in no bucket");
  EXPECT_EQ(complaint({{"c", "a"}, {"b", "c"}}), "parameter 'c' of a bucket is unknown, or in two buckets");
  EXPECT_EQ(complaint({{"x"}}), "parameter 'x' of a bucket is unknown, or in two buckets");
  EXPECT_EQ(complaint({{"a", "b", "c"}, {}}), "a bucket without parameters");
}

TEST(OutputSinkTest, PassesValuesAndGradientsThrough) {
  const at::Tensor leaf = at::ones({3}).requires_grad_(true);
  const at::Tensor output = leaf * 2;
  const std::vector<at::Tensor> results = pass_through_sink({output}, nullptr);
  ASSERT_EQ(results.size(), 1u);
  EXPECT_TRUE(at::equal(results[0], output));
  results[0].sum().backward();
  EXPECT_TRUE(at::equal(leaf.grad(), at::full({3}, 2.0)));
}

TEST(OutputSinkTest, CallsBackOncePerBackward) {
  int calls = 0;
  const at::Tensor leaf = at::ones({3}).requires_grad_(true);
  const auto results = pass_through_sink({leaf * 2, leaf * 3}, [&] { ++calls; });
  EXPECT_EQ(calls, 0);
  (results[0] + results[1]).sum().backward();
  EXPECT_EQ(calls, 1);
}

TEST(OutputSinkTest, ReachesOutputsThatTheLossDoesNotUse) {
  const at::Tensor used = at::ones({1}).requires_grad_(true);
  const at::Tensor unused = at::ones({1}).requires_grad_(true);
  const at::Tensor branch = unused * 2;
  int reached = 0;
  branch.register_hook([&](const at::Tensor& gradient) { reached += gradient.defined() ? 100 : 1; });
  const auto results = pass_through_sink({used * 2, branch}, nullptr);
  results[0].sum().backward();
  EXPECT_EQ(reached, 1);  // Once, with an undefined gradient.
  EXPECT_FALSE(unused.grad().defined());
  EXPECT_TRUE(used.grad().defined());
}

TEST(OutputSinkTest, LeavesOutputsWithoutAHistory) {
  const at::Tensor leaf = at::ones({1}).requires_grad_(true);
  const at::Tensor constant = at::ones({1});
  const auto results = pass_through_sink({leaf, constant, at::Tensor()}, [] { FAIL() << "nothing to run"; });
  EXPECT_TRUE(results[0].is_same(leaf));
  EXPECT_TRUE(results[1].is_same(constant));
  EXPECT_FALSE(results[2].defined());
}

TEST(OutputSinkTest, OutputsCanBeChangedInPlace) {
  const at::Tensor leaf = at::ones({2}).requires_grad_(true);
  const auto results = pass_through_sink({leaf * 2, leaf * 3}, nullptr);
  EXPECT_NO_THROW(results[0].mul_(5).sum().backward());
  EXPECT_TRUE(at::equal(leaf.grad(), at::full({2}, 10.0)));
}

}  // namespace

}  // namespace narrowcast

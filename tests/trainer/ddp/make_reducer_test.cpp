#include "trainer/ddp/make_reducer.h"

#include <ATen/ops/zeros.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <narrowcast/errors.h>
#include "tests/support/error_message.h"
#include "tests/support/ranks.h"

namespace narrowcast {
namespace {

using ::testing::ElementsAre;
using testing::error_message;
using testing::run_ranks;

std::vector<NamedTensor> parameters() {
  std::vector<NamedTensor> named;
  for (const char* const name : {"a", "b", "c"}) {
    named.push_back({name, at::zeros({2}).requires_grad_()});
  }
  return named;
}

TEST(MakeReducer, BucketsAreNamedInTheOrderOfSending) {
  run_ranks(1, [](int64_t, const ProcessGroupPtr& group) {
    const std::vector<NamedTensor> named = parameters();
    // Two floats per parameter: a megabyte is 2^20 bytes.
    const auto reducer = make_reducer(
        named, group,
        DdpOptions().find_unused_parameters(true).bucket_cap_mb(16.0 / (1 << 20)).first_bucket_mb(8.0 / (1 << 20)));
    EXPECT_THAT(bucket_names(*reducer, named), ElementsAre(ElementsAre("b", "c"), ElementsAre("a")));
    reducer->initialize_buckets(bucket_indices({{"c"}, {"a", "b"}}, named));
    EXPECT_THAT(bucket_names(*reducer, named), ElementsAre(ElementsAre("c"), ElementsAre("a", "b")));
  });
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

}  // namespace
}  // namespace narrowcast

#include "hooks/compress.h"

#include <ATen/ATen.h>
#include <gtest/gtest.h>

#include <limits>

#include "tests/hooks/run_hook.h"

namespace narrowcast::hooks {
namespace {

class Compress : public ::testing::TestWithParam<std::tuple<const char*, at::ScalarType>> {};

// Two ranks leave one order of adding, so that bits can be compared.
TEST_P(Compress, CastsDividesAddsAndCopiesBack) {
  const auto [name, dtype] = GetParam();
  at::manual_seed(0);
  for (const auto bucket_dtype : {at::kFloat, at::kDouble, at::kHalf, at::kBFloat16}) {
    const std::vector<at::Tensor> gradients{at::randn({1000}).to(bucket_dtype), at::randn({1000}).to(bucket_dtype)};
    const at::Tensor expected = (gradients[0].to(dtype) / 2 + gradients[1].to(dtype) / 2).to(bucket_dtype);
    for (const at::Tensor& result : run_hook(name, gradients)) {
      EXPECT_EQ(result.scalar_type(), bucket_dtype);
      EXPECT_TRUE(at::equal(result, expected)) << bucket_dtype;
    }
  }
}

TEST_P(Compress, CastsBeforeItDivides) {
  const auto [name, dtype] = GetParam();
  // 1e5 is beyond half precision, although the mean, 5e4, is not; bfloat16 has the range of float.
  const at::Tensor result = run_hook(name, {at::full({1}, 1e5F), at::zeros({1})})[0];
  EXPECT_EQ(result.isinf().item<bool>(), dtype == at::kHalf);
}

INSTANTIATE_TEST_SUITE_P(Hooks, Compress,
                         ::testing::Values(std::make_tuple("fp16_compress", at::kHalf),
                                           std::make_tuple("bf16_compress", at::kBFloat16)));

}  // namespace
}  // namespace narrowcast::hooks

#include "hooks/quantize_per_tensor.h"

#include <ATen/ATen.h>
#include <gtest/gtest.h>

#include "tests/hooks/run_hook.h"

namespace narrowcast::hooks {
namespace {

// One rank alone gets its own bucket through its codes. Scale, zero point and codes are PyTorch's.
TEST(QuantizePerTensorHook, DecodesPyTorchsCodes) {
  const float scale = 0x1.010102p-7F;
  const at::Tensor expected = at::tensor({0.F, 127.F, 254.F, 191.F, 63.F}).sub(127.F).mul(scale);
  EXPECT_TRUE(at::equal(run_hook("quantize_per_tensor", {at::tensor({-1.F, 0.F, 1.F, .5F, -.5F})})[0], expected));
}

TEST(QuantizePerTensorHook, TakesOneScaleForTheWholeBucket) {
  at::Tensor bucket = at::full({2000}, 0.1F);
  bucket[1999] = 255;  // A scale of 1: everything else becomes 0.
  at::Tensor expected = at::zeros({2000});
  expected[1999] = 255;
  EXPECT_TRUE(at::equal(run_hook("quantize_per_tensor", {bucket})[0], expected));
}

TEST(QuantizePerTensorHook, EveryRankContributesThroughItsOwnScale) {
  // Both ends of a range are exact: code 255 times scale, and the code of zero.
  const auto results = run_hook("quantize_per_tensor", {at::tensor({255.F, 0.F}), at::tensor({0.F, -510.F})});
  for (const at::Tensor& result : results) EXPECT_TRUE(at::equal(result, at::tensor({127.5F, -255.F})));
}

}  // namespace
}  // namespace narrowcast::hooks

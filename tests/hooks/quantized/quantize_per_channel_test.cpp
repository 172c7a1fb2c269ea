#include "hooks/quantized/quantize_per_channel.h"

#include <ATen/ATen.h>
#include <gtest/gtest.h>

#include "tests/hooks/run_hook.h"

namespace narrowcast::hooks {
namespace {

TEST(QuantizePerChannelHook, TakesAScaleForEach512Elements) {
  at::Tensor bucket = at::cat({at::full({512}, 255.F), at::full({512}, 2.F), at::full({100}, -3.F)});
  EXPECT_TRUE(at::equal(run_hook("quantize_per_channel", {bucket})[0],
                        at::cat({at::full({512}, 255.F), at::full({512}, (2.F / 255) * 255),
                                 at::full({100}, (3.F / 255) * (0 - 255.F))})));
}

TEST(QuantizePerChannelHook, ALargeValueSpoilsOnlyItsOwnRow) {
  at::Tensor bucket = at::full({1024}, 0.1F);
  bucket[511] = 255;  // A scale of 1 in the first row.
  const at::Tensor result = run_hook("quantize_per_channel", {bucket})[0];
  EXPECT_TRUE(at::equal(result.narrow(0, 0, 511), at::zeros({511})));
  EXPECT_TRUE(at::equal(result.narrow(0, 512, 512), at::full({512}, (0.1F / 255) * 255)));
}

}  // namespace
}  // namespace narrowcast::hooks

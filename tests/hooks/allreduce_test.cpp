#include "hooks/allreduce.h"

#include <ATen/ATen.h>
#include <gtest/gtest.h>

#include "tests/hooks/run_hook.h"

namespace narrowcast::hooks {
namespace {

// Two ranks leave one order of adding, so that bits can be compared.
TEST(AllReduceHook, DividesBeforeItAdds) {
  at::manual_seed(0);
  const std::vector<at::Tensor> gradients{at::randn({1000}), at::randn({1000})};
  for (const at::Tensor& result : run_hook("allreduce", gradients)) {
    EXPECT_TRUE(at::equal(result, gradients[0] / 2 + gradients[1] / 2));
  }
}

TEST(AllReduceHook, DoesNotOverflowWhereTheMeanExists) {
  const std::vector<at::Tensor> gradients(4, at::full({10}, 3e38F));
  for (const at::Tensor& result : run_hook("allreduce", gradients)) EXPECT_TRUE(at::equal(result, gradients[0]));
}

}  // namespace
}  // namespace narrowcast::hooks

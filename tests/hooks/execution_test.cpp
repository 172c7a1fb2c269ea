#include "hooks/execution.h"

#include <ATen/ops/ones.h>
#include <c10/util/Exception.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <stdexcept>

#include "tests/support/error_message.h"
#include "tests/support/ranks.h"

namespace narrowcast::hooks {
namespace {

using Group = c10::intrusive_ptr<c10d::ProcessGroup>;

TEST(CpuEngine, IsTheGroupsOwn) {
  testing::run_ranks(1, [](int64_t, const Group& group) {
    CpuEngine first(group);
    CpuEngine second(group);
    EXPECT_EQ(&first.get(), &second.get());
    EXPECT_EQ(&first.get(), engine::Engine::for_group(group).get());
  });
}

TEST(CpuEngine, NeedsAGroupThatMovesTensors) {
  EXPECT_THAT(
      testing::error_message<c10::ValueError>([] { CpuEngine engine(c10::make_intrusive<c10d::ProcessGroup>(0, 1)); }),
      ::testing::HasSubstr("backend for CPU tensors"));
}

TEST(HookStream, DoesItsWorkAtOnceOnTheCpu) {
  HookStream stream;
  const at::Tensor bucket = at::ones({3});
  const auto future = stream.run(bucket, [&] { return bucket.mul_(2); });
  ASSERT_TRUE(future->completed());
  EXPECT_TRUE(future->value().toTensor().is_same(bucket));
  EXPECT_TRUE(bucket.eq(2).all().item<bool>());
  EXPECT_THROW(stream.run(bucket, []() -> at::Tensor { throw std::logic_error("on purpose"); }), std::logic_error);
}

}  // namespace
}  // namespace narrowcast::hooks

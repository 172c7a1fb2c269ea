// Linked into every test program: each test begins with the same random numbers. LibTorch seeds its generator from the
// clock, and a test that fails for one seed in thirty fails for no one who looks.
#include <ATen/Context.h>
#include <gtest/gtest.h>

#include <memory>

namespace narrowcast::testing {
namespace {

class SeedEachTest final : public ::testing::EmptyTestEventListener {
  void OnTestStart(const ::testing::TestInfo&) override { at::manual_seed(1); }
};

// GoogleTest owns its listeners.
[[maybe_unused]] const bool kSeeds = [] {
  ::testing::UnitTest::GetInstance()->listeners().Append(std::make_unique<SeedEachTest>().release());
  return true;
}();

}  // namespace
}  // namespace narrowcast::testing

// Linked into every test program: each test begins with the same random numbers. LibTorch seeds its generator from the
// clock, so that a test that fails for one seed in thirty could not be reproduced.
//
// Seeds the CPU only: at::manual_seed asks CUDA for its GPUs, after which no forked process of a test can use them.
#include <ATen/CPUGeneratorImpl.h>
#include <gtest/gtest.h>

#include <memory>
#include <mutex>

namespace narrowcast::testing {
namespace {

class SeedEachTest final : public ::testing::EmptyTestEventListener {
  void OnTestStart(const ::testing::TestInfo&) override {
    at::Generator generator = at::detail::getDefaultCPUGenerator();
    const std::lock_guard<std::mutex> lock(generator.mutex());
    generator.set_current_seed(1);
  }
};

// GoogleTest owns its listeners.
[[maybe_unused]] const bool kSeeds = [] {
  ::testing::UnitTest::GetInstance()->listeners().Append(std::make_unique<SeedEachTest>().release());
  return true;
}();

}  // namespace
}  // namespace narrowcast::testing

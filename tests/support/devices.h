// The devices that operators are tested on.
#pragma once

#include <ATen/Context.h>
#include <c10/core/Device.h>
#include <c10/core/DeviceType.h>
#include <gtest/gtest.h>

#include <cstdlib>
#include <string>

namespace narrowcast::test {

inline const auto kDevices = ::testing::Values(c10::DeviceType::CPU, c10::DeviceType::CUDA);

// Why a test on a device cannot run here; empty if it can.
inline std::string why_missing(c10::DeviceType device) {
  return device != c10::DeviceType::CUDA || at::hasCUDA()
             ? std::string()
             : "no GPU: LibTorch is built without CUDA, or this machine has none";
}

// Lower case, for the names of tests.
inline std::string name_of(c10::DeviceType device) { return c10::DeviceTypeName(device, /*lower_case=*/true); }

// Whether a test that needs a GPU fails, instead of being skipped, on a machine without one. NARROWCAST_REQUIRE_GPU=1
// requests that.
inline bool gpu_is_required() {
  const char* const required = std::getenv("NARROWCAST_REQUIRE_GPU");
  return required != nullptr && std::string(required) == "1";
}

inline std::string name_of_case(const ::testing::TestParamInfo<c10::DeviceType>& test) { return name_of(test.param); }

}  // namespace narrowcast::test

// Ends a test or its SetUp that needs a GPU. `why_not` is the reason why no GPU can be used; empty if one can.
#define NARROWCAST_NEEDS_GPU(why_not)                                  \
  if (const std::string missing = (why_not); !missing.empty()) {       \
    if (::narrowcast::test::gpu_is_required()) {                       \
      FAIL() << "NARROWCAST_REQUIRE_GPU=1 demands a GPU: " << missing; \
    }                                                                  \
    GTEST_SKIP() << missing;                                           \
  }                                                                    \
  static_assert(true)

// The same for a test on any device.
#define NARROWCAST_SKIP_WITHOUT(device) NARROWCAST_NEEDS_GPU(::narrowcast::test::why_missing(device))

namespace narrowcast::test {

// Base class of tests that run on every device. Derive a class from it for TEST_P, and write
//   INSTANTIATE_TEST_SUITE_P(Devices, ThatClass, kDevices, name_of_case);
// ctest runs the cases on a GPU as separate tests (cmake/NarrowcastTest.cmake).
class DeviceTest : public ::testing::TestWithParam<c10::DeviceType> {
 protected:
  void SetUp() override { NARROWCAST_SKIP_WITHOUT(GetParam()); }
  c10::Device device() const { return {GetParam()}; }
};

}  // namespace narrowcast::test

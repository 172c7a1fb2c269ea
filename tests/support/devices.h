// The devices that operators are tested on.
#pragma once

#include <ATen/Context.h>
#include <c10/core/Device.h>
#include <c10/core/DeviceType.h>
#include <gtest/gtest.h>

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

inline std::string name_of_case(const ::testing::TestParamInfo<c10::DeviceType>& test) { return name_of(test.param); }

}  // namespace narrowcast::test

// Ends a test or its SetUp on a device that is not there.
#define NARROWCAST_SKIP_WITHOUT(device)                                                        \
  if (const std::string missing = ::narrowcast::test::why_missing(device); !missing.empty()) { \
    GTEST_SKIP() << missing;                                                                   \
  }                                                                                            \
  static_assert(true)

namespace narrowcast::test {

// What holds on every device: TEST_P of a class derived from it, and
// INSTANTIATE_TEST_SUITE_P(Devices, ThatClass, kDevices, name_of_case).
class DeviceTest : public ::testing::TestWithParam<c10::DeviceType> {
 protected:
  void SetUp() override { NARROWCAST_SKIP_WITHOUT(GetParam()); }
  c10::Device device() const { return {GetParam()}; }
};

}  // namespace narrowcast::test

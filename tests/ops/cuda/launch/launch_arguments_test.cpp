#include "ops/cuda/launch/launch_arguments.h"

#include <c10/util/Exception.h>
#include <gtest/gtest.h>

#include <stdexcept>
#include <string>
#include <utility>

#include "ops/cuda/launch/tensor_arguments.h"

namespace narrowcast::cuda {
namespace {

constexpr auto kUnknown = static_cast<FloatType>(4);

TEST(VisitFloatType, GivesEachTypeAsAConstant) {
  for (const FloatType type : {FloatType::kFloat32, FloatType::kFloat64, FloatType::kBfloat16, FloatType::kFloat16}) {
    int calls = 0;
    visit_float_type(type, [&](auto constant) {
      EXPECT_EQ(decltype(constant)::value, type);
      ++calls;
    });
    EXPECT_EQ(calls, 1);
    EXPECT_NO_THROW(check_float_type(type));
  }
}

TEST(VisitFloatType, RefusesANumberThatIsNone) {
  EXPECT_THROW(visit_float_type(kUnknown, [](auto) { FAIL(); }), std::invalid_argument);
  EXPECT_THROW(visit_narrow_float_type(kUnknown, [](auto) { FAIL(); }), std::invalid_argument);
  EXPECT_THROW(check_float_type(kUnknown), std::invalid_argument);
}

TEST(VisitFloatType, HasNoFloat64AmongTheNarrowOnes) {
  EXPECT_THROW(visit_narrow_float_type(FloatType::kFloat64, [](auto) { FAIL(); }), std::invalid_argument);
  FloatType visited = FloatType::kFloat64;
  visit_narrow_float_type(FloatType::kFloat16, [&](auto constant) { visited = constant; });
  EXPECT_EQ(visited, FloatType::kFloat16);
}

// The message of a launch with an error that existed before, and an error that it causes.
std::string launch_with(const char* before, const char* after, int& launches) {
  const char* error = before;
  try {
    launch_between_looks(
        "some_kernel", [&] { return std::exchange(error, nullptr); },
        [&] {
          ++launches;
          error = after;
        });
  } catch (const std::runtime_error& thrown) {
    return thrown.what();
  }
  return "";
}

TEST(LaunchBetweenLooks, TellsItsOwnErrorFromThatOfOthers) {
  int launches = 0;
  EXPECT_EQ(launch_with(nullptr, nullptr, launches), "");
  EXPECT_EQ(launch_with(nullptr, "invalid device function", launches),
            "CUDA kernel some_kernel was not launched: invalid device function");
  EXPECT_EQ(launches, 2);
  EXPECT_EQ(launch_with("out of memory", nullptr, launches),
            "CUDA kernel some_kernel was not launched, because an earlier CUDA call on this thread failed: out of "
            "memory");
  EXPECT_EQ(launches, 2);
}

TEST(FloatTypeOf, IsThatOfADtypeThatIsQuantised) {
  EXPECT_EQ(float_type_of(at::kFloat), FloatType::kFloat32);
  EXPECT_EQ(float_type_of(at::kDouble), FloatType::kFloat64);
  EXPECT_EQ(float_type_of(at::kBFloat16), FloatType::kBfloat16);
  EXPECT_EQ(float_type_of(at::kHalf), FloatType::kFloat16);
  EXPECT_THROW(float_type_of(at::kInt), c10::TypeError);
}

}  // namespace
}  // namespace narrowcast::cuda

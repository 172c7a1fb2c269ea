#include "ops/cuda/launch_arguments.h"

#include <gtest/gtest.h>

#include <stdexcept>

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

}  // namespace
}  // namespace narrowcast::cuda

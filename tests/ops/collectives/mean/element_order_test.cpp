#include "ops/collectives/mean/element_order.h"

#include <ATen/ATen.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <string>
#include <tuple>

#include "ops/collectives/mean/mean_exchange.h"
#include "ops/collectives/mean/segments.h"

namespace narrowcast::collectives {
namespace {

constexpr int64_t kGrain = cpu::kWireGrain;

at::Tensor all_elements(const ElementOrder& order, int64_t numel) { return order.elements({0, numel}, at::kCPU); }

TEST(ElementOrder, IsTheArraysOwnInFormatsWhosePartsAreMessages) {
  for (const WireFormat format : {WireFormat::kInt8B128, WireFormat::kInt4B32, WireFormat::kBf16, WireFormat::kFp32}) {
    const ElementOrder order = ElementOrder::of(format, 100 * kGrain);
    EXPECT_TRUE(order.is_arrays_own()) << to_string(format);
    EXPECT_EQ(order.element(7 * kGrain), 7 * kGrain);
    const at::Tensor array = at::arange(100 * kGrain);
    EXPECT_TRUE(order.take(array, {kGrain, 5}).is_alias_of(array)) << "a copy";
    EXPECT_TRUE(at::equal(order.take(array, {kGrain, 5}), array.narrow(0, kGrain, 5)));
  }
}

class DealtArray : public ::testing::TestWithParam<int64_t> {
 protected:
  const int64_t numel_ = GetParam();
  const ElementOrder order_ = ElementOrder::of(WireFormat::kVar5, numel_);
};

TEST_P(DealtArray, HasEachElementInOnePlace) {
  EXPECT_TRUE(at::equal(std::get<0>(all_elements(order_, numel_).sort()), at::arange(numel_)));
}

TEST_P(DealtArray, KeepsGrainsTogetherWhereElementSays) {
  const at::Tensor elements = all_elements(order_, numel_);
  for (int64_t place = 0; place < numel_; place += kGrain) {
    const int64_t n = std::min(kGrain, numel_ - place);
    const int64_t element = order_.element(place);
    ASSERT_TRUE(at::equal(elements.narrow(0, place, n), at::arange(element, element + n))) << place;
  }
}

TEST_P(DealtArray, GivesThePartsOfItsElements) {
  const at::Tensor elements = all_elements(order_, numel_);
  for (const Segment& part : cut(numel_, 3)) {
    EXPECT_TRUE(at::equal(order_.elements(part, at::kCPU), elements.narrow(0, part.begin, part.numel)));
  }
}

TEST_P(DealtArray, PutsBackWhatItTook) {
  const at::Tensor array = at::rand({numel_});
  const at::Tensor back = at::zeros({numel_});
  for (const Segment& part : cut(numel_, 3)) order_.add(order_.take(array, part), 2, part, back);
  EXPECT_TRUE(at::equal(back, 2 * array));
}

INSTANTIATE_TEST_SUITE_P(Sizes, DealtArray,
                         ::testing::Values(0, 1, 1023, 1024, 1025, 2 * 1024, 3 * 1024 + 7, 100'000, 1'000'003));

// How many more grains than their share of parts lie in an interval of the array: with the golden ratio a few, however
// long both are, where it would be a quarter of the part's if neighbours stayed together.
TEST(ElementOrder, DealsEveryPartOutOverTheWholeArray) {
  for (const int64_t grains : {7, 97, 110, 1024, 6400, 6401, 25'600}) {
    const ElementOrder order = ElementOrder::of(WireFormat::kVar5, grains * kGrain);
    for (const int64_t parts : {2, 3, 4, 5, 8, 16, 64}) {
      for (const Segment& part : cut(grains * kGrain, parts)) {
        int64_t in_quarter[4] = {};
        for (int64_t place = part.begin; place < part.begin + part.numel; place += kGrain) {
          ++in_quarter[4 * (order.element(place) / kGrain) / grains];
        }
        const double share = static_cast<double>(part.numel / kGrain) / 4;
        for (const int64_t count : in_quarter) {
          ASSERT_LE(std::abs(static_cast<double>(count) - share), 6) << grains << " grains in " << parts << " parts";
        }
      }
    }
  }
}

}  // namespace
}  // namespace narrowcast::collectives

#include "ops/collectives/all_reduce/array/element_order.h"

#include <ATen/ATen.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <tuple>
#include <vector>

#include "ops/collectives/all_reduce/array/element_range.h"

namespace narrowcast::collectives {
namespace {

constexpr int64_t kGrain = cpu::kWireGrain;

TEST(ElementOrder, IsTheArraysOwnInFormatsWhosePartsAreMessages) {
  for (const WireFormat format : {WireFormat::kInt8B128, WireFormat::kInt4B32, WireFormat::kBf16, WireFormat::kFp32}) {
    const ElementOrder order = ElementOrder::of(format, 100 * kGrain);
    EXPECT_TRUE(order.is_identity()) << to_string(format);
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
  const at::Tensor elements_ = order_.take(at::arange(numel_), {0, numel_});  // By place.
};

TEST_P(DealtArray, HasEachElementInOnePlace) {
  EXPECT_TRUE(at::equal(std::get<0>(elements_.sort()), at::arange(numel_)));
}

TEST_P(DealtArray, KeepsGrainsTogetherWhereElementSays) {
  for (int64_t place = 0; place < numel_; place += kGrain) {
    const int64_t n = std::min(kGrain, numel_ - place);
    const int64_t element = order_.element(place);
    ASSERT_TRUE(at::equal(elements_.narrow(0, place, n), at::arange(element, element + n))) << place;
  }
}

TEST_P(DealtArray, GivesThePartsOfItsElements) {
  for (const ElementRange& part : cut(numel_, 3)) {
    EXPECT_TRUE(at::equal(order_.take(at::arange(numel_), part), elements_.narrow(0, part.begin, part.numel)));
  }
}

TEST_P(DealtArray, PutsBackWhatItTook) {
  const at::Tensor array = at::rand({numel_});
  const at::Tensor back = at::zeros({numel_});
  const at::Tensor sum = at::ones({numel_});
  for (const ElementRange& part : cut(numel_, 3)) {
    order_.put(order_.take(array, part), part, back);
    order_.add(order_.take(array, part), 2, part, sum);
  }
  EXPECT_TRUE(at::equal(back, array));
  EXPECT_TRUE(at::equal(sum, at::ones({numel_}).add_(array, 2)));
}

TEST_P(DealtArray, KnowsThePlacesOfRanges) {
  std::vector<ElementRange> ranges = {{0, numel_ / 4}, {numel_ / 2, numel_ / 3}};
  std::erase_if(ranges, [](const ElementRange& range) { return range.numel == 0; });
  const at::Tensor is_in = at::zeros({numel_}, at::kBool);
  for (const ElementRange& range : ranges) is_in.narrow(0, range.begin, range.numel).fill_(true);
  const at::Tensor found = at::zeros({numel_}, at::kBool);
  int64_t end = -1;
  for (const ElementRange& places : order_.offsets_of(ranges)) {
    ASSERT_GT(places.begin, end) << "in order, and neighbours joined";
    end = places.begin + places.numel;
    found.narrow(0, places.begin, places.numel).fill_(true);
  }
  EXPECT_TRUE(at::equal(found, order_.take(is_in, {0, numel_})));
}

INSTANTIATE_TEST_SUITE_P(Sizes, DealtArray,
                         ::testing::Values(0, 1, 1023, 1024, 1025, 2 * 1024, 3 * 1024 + 7, 100'000, 1'000'003));

// Counts the grains of each part in intervals of the array, beyond the part's share. With the golden ratio the excess
// is a few grains for any lengths. If neighbours stayed together it would be a quarter of the part's grains.
TEST(ElementOrder, DealsEveryPartOutOverTheWholeArray) {
  for (const int64_t grains : {7, 97, 110, 1024, 6400, 6401, 25'600}) {
    const ElementOrder order = ElementOrder::of(WireFormat::kVar5, grains * kGrain);
    for (const int64_t parts : {2, 3, 4, 5, 8, 16, 64}) {
      for (const ElementRange& part : cut(grains * kGrain, parts)) {
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

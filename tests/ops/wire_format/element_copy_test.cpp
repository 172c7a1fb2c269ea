// Copies of float32 between orders of elements, on every instruction set: every number is copied, and nothing beside
// them.
#include <gtest/gtest.h>
#include <hwy/aligned_allocator.h>

#include <algorithm>
#include <string>
#include <tuple>

#include "ops/cpu/wire/element_copy.h"
#include "tests/ops/codec/instruction_sets.h"

namespace narrowcast::cpu {
namespace {

constexpr float kNotCopied = 4711;

// Whether each of two arrays has permuted grains.
struct CopyOrders {
  bool from;
  bool to;
};

// An array of `numel` elements that begins `shift` floats after a cache line. All elements except the first `skipped`
// ones are copied.
struct CopySide {
  int64_t numel;
  int64_t skipped;
  int64_t shift;
  GrainOrder order;
  hwy::AlignedFreeUniquePtr<float[]> memory = hwy::AllocateAligned<float>(static_cast<size_t>(numel + 1));

  CopySide(int64_t n, int64_t skip, int64_t shifted, bool is_dealt)
      : numel(n), skipped(std::min(skip, n)), shift(shifted), order{is_dealt ? n / kWireGrain : 0, stride_of(n)} {
    std::fill_n(memory.get(), numel + 1, kNotCopied);
  }

  // Has no divisor in common with the number of grains.
  static int64_t stride_of(int64_t n) { return std::max<int64_t>(1, n / kWireGrain - 1); }

  float* array() const { return memory.get() + shift; }

  WireElements<float> elements() const { return {array(), numel - skipped, order, skipped}; }

  float& at(int64_t i) const {
    const int64_t place = skipped + i;
    return array()[order.element(place / kWireGrain * kWireGrain) + place % kWireGrain];
  }
};

// Number of elements, number of skipped first elements, and the orders.
class ElementCopy : public ::testing::TestWithParam<std::tuple<int64_t, int64_t, CopyOrders>> {};

TEST_P(ElementCopy, MovesEveryElementToItsPlace) {
  const auto [numel, skipped, orders] = GetParam();
  for (const int64_t instruction_set : test::instruction_sets()) {
    const test::UseInstructionSet use(instruction_set);
    for (const int64_t shift : {0, 1}) {  // Only whole cache lines can be written past the cache.
      const CopySide from(numel, skipped, 1 - shift, orders.from);
      const CopySide to(numel, skipped, shift, orders.to);
      const int64_t n = from.elements().n;
      for (int64_t i = 0; i < n; ++i) {
        from.at(i) = static_cast<float>(i);  // Exact, and different at each place.
      }
      const auto [x, count, order, place] = from.elements();
      copy_elements({x, count, order, place}, to.elements());
      int64_t wrong = 0;
      for (int64_t i = 0; i < n; ++i) {
        wrong += to.at(i) == static_cast<float>(i) ? 0 : 1;
      }
      EXPECT_EQ(wrong, 0) << "shift " << shift;
      // A copied number may equal kNotCopied.
      const int64_t copied = n > static_cast<int64_t>(kNotCopied) ? 1 : 0;
      EXPECT_EQ(std::count(to.memory.get(), to.memory.get() + numel + 1, kNotCopied), numel + 1 - n + copied);
    }
  }
}

std::string name_of_case(const ::testing::TestParamInfo<ElementCopy::ParamType>& info) {
  const auto [numel, skipped, orders] = info.param;
  return std::to_string(numel) + (skipped > 0 ? "_but_the_first" : "") + (orders.from ? "_from_dealt" : "") +
         (orders.to ? "_to_dealt" : "");
}

INSTANTIATE_TEST_SUITE_P(Sizes, ElementCopy,
                         ::testing::Combine(::testing::Values(0, 1, 7, 127, 128, 129, 255, 256, 257, 7777, 1000003),
                                            ::testing::Values(0, 2 * kWireGrain),
                                            ::testing::Values(CopyOrders{false, false}, CopyOrders{true, false},
                                                              CopyOrders{false, true}, CopyOrders{true, true})),
                         name_of_case);

}  // namespace
}  // namespace narrowcast::cpu

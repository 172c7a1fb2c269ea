// Messages of the variable formats for permuted elements of an array, on every instruction set. They must equal the
// messages of an array that is stored in that order.
#include <gtest/gtest.h>
#include <hwy/aligned_allocator.h>

#include <algorithm>
#include <vector>

#include "ops/cpu/variable/variable_message.h"
#include "tests/ops/wire_format/plain_variable.h"
#include "tests/ops/wire_format/variable_inputs.h"

namespace narrowcast::cpu {
namespace {

using test::Bytes;
using test::Floats;

constexpr int64_t kRest = 77;          // Elements after the last whole grain.
constexpr int64_t kFirstPlace = 2048;  // The range begins here.
constexpr float kNotOfRange = 4711;

// A range of an array of `grains` grains and a rest; it has all except the first places.
struct Dealt {
  int64_t numel;
  GrainOrder order;

  explicit Dealt(int64_t grains) : numel(grains * kWireGrain + kRest), order{grains, grains - 2} {}

  int64_t length() const { return numel - kFirstPlace; }

  // The array index of the range's element i.
  int64_t index(int64_t i) const {
    return order.element((kFirstPlace + i) / kWireGrain * kWireGrain) + (kFirstPlace + i) % kWireGrain;
  }

  template <class T>
  WireElements<T> of(T* array) const {
    return {array, length(), order, kFirstPlace};
  }

  // The range's elements in order.
  template <class T>
  Floats taken(const T* array) const {
    return test::generate(length(), [&](int64_t i) { return static_cast<float>(array[index(i)]); });
  }
};

// A few grains, and more than caches hold, which are prefetched and written past the caches. Both numbers are odd, so
// that the stride has no divisor in common with them.
constexpr int64_t kGrains[] = {7, 261};

TEST(WireElements, HaveAnUpcomingGrainAsLongAsThereIsOne) {
  const Dealt dealt(7);
  const Floats array(static_cast<size_t>(dealt.numel));
  const WireElements<const float> elements = dealt.of(array.data());
  EXPECT_EQ(elements.upcoming(0), array.data() + dealt.index(3 * kWireGrain));
  EXPECT_EQ(elements.upcoming(2 * kWireGrain), array.data() + dealt.index(5 * kWireGrain));  // The rest.
  EXPECT_EQ(elements.upcoming(3 * kWireGrain), nullptr);
}

class DealtElements : public ::testing::TestWithParam<int> {
 protected:
  const int bits_ = GetParam();

  template <class T>
  void expect_encodes(const Dealt& dealt, const Rounding& rounding) {
    const Floats x = test::all_variable_inputs(dealt.numel)[1].second;
    const std::vector<T> array(x.begin(), x.end());
    const Bytes expected = test::plain_encode(bits_, dealt.taken(array.data()), rounding);
    test::on_each_instruction_set([&] {
      Bytes bytes(expected.size());
      VariableWriter writer(bits_, rounding, dealt.length(), bytes.data());
      writer.measure(0, dealt.of<const T>(array.data()));
      writer.settle();
      writer.write(0, dealt.of<const T>(array.data()));
      EXPECT_EQ(bytes, expected);
    });
  }

  Bytes message(const Dealt& dealt, size_t input) const {
    return test::plain_encode(bits_, test::all_variable_inputs(dealt.length())[input].second, {});
  }
};

TEST_P(DealtElements, AreEncodedInOrder) {
  for (const int64_t grains : kGrains) {
    const Dealt dealt(grains);
    expect_encodes<float>(dealt, {});
    expect_encodes<float>(dealt, test::kAtRandom);
    expect_encodes<double>(dealt, {});
    expect_encodes<c10::Half>(dealt, {});
  }
}

TEST_P(DealtElements, AreDecodedToTheirPlaces) {
  for (const int64_t grains : kGrains) {
    const Dealt dealt(grains);
    const Bytes bytes = message(dealt, 1);
    const Floats expected = test::plain_decode(bits_, bytes.data(), dealt.length());
    const VariableReader reader(bits_, bytes.data(), dealt.length());
    test::on_each_instruction_set([&] {
      const auto array = hwy::AllocateAligned<float>(static_cast<size_t>(dealt.numel));
      std::fill_n(array.get(), dealt.numel, kNotOfRange);
      variable_decode(reader.source(), 0, dealt.of(array.get()));
      EXPECT_TRUE(test::same(dealt.taken(array.get()), expected));
      EXPECT_EQ(std::count(array.get(), array.get() + dealt.numel, kNotOfRange), kFirstPlace);
    });
  }
}

// With three ranks no quotient is an exact product; in place, and with the extents of the mean's blocks.
TEST_P(DealtElements, AreAveragedInPlace) {
  for (const int64_t grains : kGrains) {
    const Dealt dealt(grains);
    const Floats own = test::all_variable_inputs(dealt.numel)[1].second;
    const Bytes messages[] = {message(dealt, 0), message(dealt, 12)};
    const VariableReader readers[] = {{bits_, messages[0].data(), dealt.length()},
                                      {bits_, messages[1].data(), dealt.length()}};
    const VariableSource sources[] = {readers[0].source(), readers[1].source()};
    const VariableSource* const by_rank[] = {&sources[0], nullptr, &sources[1]};
    Floats mean = test::plain_decode(bits_, messages[0].data(), dealt.length());
    const Floats of_last = test::plain_decode(bits_, messages[1].data(), dealt.length());
    for (int64_t i = 0; i < dealt.length(); ++i) {
      float& number = mean[static_cast<size_t>(i)];
      number = (number + own[static_cast<size_t>(dealt.index(i))] + of_last[static_cast<size_t>(i)]) / 3;
    }
    const std::vector<uint32_t> extents = test::plain_extents(mean);
    test::on_each_instruction_set([&] {
      const auto array = hwy::AllocateAligned<float>(static_cast<size_t>(dealt.numel));
      const VariableParts parts{by_rank, 3, dealt.of<const float>(array.get()), 0};
      std::copy(own.begin(), own.end(), array.get());
      variable_average(parts, dealt.of(array.get()));
      EXPECT_TRUE(test::same(dealt.taken(array.get()), mean));
      std::copy(own.begin(), own.end(), array.get());
      std::vector<BlockExtent> measured(extents.size());
      variable_average(parts, dealt.of(array.get()), measured.data());
      EXPECT_TRUE(test::same(dealt.taken(array.get()), mean));
      EXPECT_EQ(test::bits_of(measured), extents);
    });
  }
}

INSTANTIATE_TEST_SUITE_P(All, DealtElements, ::testing::Values(3, 6));

}  // namespace
}  // namespace narrowcast::cpu

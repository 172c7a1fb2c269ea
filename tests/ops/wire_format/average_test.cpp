// The mean of the ranks' encoded arrays, and its message, compared with the plain codec, a plain sum in rank order and
// a plain division.
#include <gtest/gtest.h>
#include <hwy/aligned_allocator.h>

#include <string>

#include "ops/cpu/wire/wire_kernels.h"
#include "tests/ops/codec/instruction_sets.h"
#include "tests/ops/wire_format/whole_messages.h"
#include "tests/ops/wire_format/wire_inputs.h"
#include "tests/support/sanitized.h"

namespace narrowcast::cpu {
namespace {

using test::Bytes;
using test::Floats;

// The ranks' contributions; one of them is a float array.
struct Contributions {
  std::vector<Bytes> messages;
  std::vector<const uint8_t*> pointers;
  Floats own;
  Floats sum;
  Floats mean;

  // own_rank: -1 for none.
  Contributions(WireFormat format, int64_t ranks, int64_t own_rank, int64_t n) : mean(static_cast<size_t>(n)) {
    for (int64_t r = 0; r < ranks; ++r) {
      at::manual_seed(r);
      const at::Tensor random = at::randn({n});
      const Floats x(random.const_data_ptr<float>(), random.const_data_ptr<float>() + n);
      messages.push_back(test::plain_encode(format, x, test::kNearest));
      const Floats part = r == own_rank ? x : test::plain_decode(format, messages.back(), n);
      for (size_t i = 0; i < mean.size(); ++i) mean[i] = r == 0 ? part[i] : mean[i] + part[i];
      if (r == own_rank) own = x;
    }
    sum = mean;
    for (float& value : mean) value /= static_cast<float>(ranks);
    for (int64_t r = 0; r < ranks; ++r) {
      pointers.push_back(r == own_rank ? nullptr : messages[static_cast<size_t>(r)].data());
    }
  }
  RankParts parts() const {
    return {pointers.data(), static_cast<int64_t>(pointers.size()), own.data(), static_cast<int64_t>(mean.size())};
  }
};

class WireAverage : public ::testing::TestWithParam<WireFormat> {
 protected:
  const WireFormat format_ = GetParam();

  template <class Body>
  void for_each_world(const Body& body) {
    for (const int64_t n : test::kSizes) {
      for (const int64_t ranks : {1, 2, 3, 4, 7, 8}) {
        if (n > 1000 && ranks != 3) continue;
        if (test::kSanitized && ranks != 1 && ranks != 3 && ranks != 8) continue;
        for (int64_t own_rank = -1; own_rank < ranks; own_rank += 1 + ranks / 3) {
          SCOPED_TRACE(::testing::Message() << n << " elements of " << ranks << " ranks, own " << own_rank);
          const Contributions all(format_, ranks, own_rank, n);
          for (const int64_t target : test::all_instruction_sets()) {
            const test::UseInstructionSet use(target);
            body(all);
          }
        }
      }
    }
  }
};

TEST_P(WireAverage, SumsInRankOrderAndDivides) {
  for_each_world([&](const Contributions& all) {
    Floats mean(all.mean.size());
    test::wire_average(format_, all.parts(), mean.data());
    EXPECT_TRUE(test::same(mean, all.mean));
  });
}

TEST_P(WireAverage, OrDoesNotDivide) {
  for_each_world([&](const Contributions& all) {
    RankParts parts = all.parts();
    parts.reduction = Reduction::kSum;
    Floats sum(all.sum.size());
    test::wire_average(format_, parts, sum.data());
    EXPECT_TRUE(test::same(sum, all.sum));
  });
}

TEST_P(WireAverage, EncodesTheMean) {
  for (const Rounding& rounding : {test::kNearest, test::kStochastic}) {
    for_each_world([&](const Contributions& all) {
      Bytes bytes(static_cast<size_t>(test::size_of(format_, all.parts().n)));
      test::wire_average_encode(format_, all.parts(), rounding, bytes.data());
      EXPECT_EQ(bytes, test::plain_encode(format_, all.mean, rounding));
    });
  }
}

TEST_P(WireAverage, MayReplaceTheOwnPart) {
  Contributions all(format_, 3, 1, 5000);
  test::wire_average(format_, all.parts(), all.own.data());
  EXPECT_TRUE(test::same(all.own, all.mean));
}

TEST_P(WireAverage, GoesAlikeToLongAlignedArrays) {
  constexpr int64_t kLong = (int64_t{1} << 18) + 77;
  const Contributions all(format_, 2, -1, kLong);
  for (const int64_t target : test::all_instruction_sets()) {
    const test::UseInstructionSet use(target);
    const auto mean = hwy::AllocateAligned<float>(kLong);
    test::wire_average(format_, all.parts(), mean.get());
    EXPECT_TRUE(test::same(Floats(mean.get(), mean.get() + kLong), all.mean));
  }
}

// For any rank with the NaN, and in any part.
TEST_P(WireAverage, OfANanIsNone) {
  for (const int64_t own_rank : {-1, 0, 1, 2}) {
    for (size_t with_nan = 0; with_nan < 3; ++with_nan) {
      Contributions all(format_, 3, own_rank, 700);
      Floats x(700, 1.0F);
      x[650] = std::nanf("");
      if (static_cast<int64_t>(with_nan) == own_rank) {
        all.own = x;
      } else {
        all.messages[with_nan] = test::plain_encode(format_, x, test::kNearest);
        all.pointers[with_nan] = all.messages[with_nan].data();
      }
      Bytes bytes(static_cast<size_t>(test::size_of(format_, 700)));
      test::wire_average_encode(format_, all.parts(), test::kNearest, bytes.data());
      const Floats decoded = test::plain_decode(format_, bytes, 700);
      EXPECT_TRUE(std::isnan(decoded[650]));
      EXPECT_EQ(std::isfinite(decoded[0]), codec::wire::can_be_split(format_));
    }
  }
}

INSTANTIATE_TEST_SUITE_P(All, WireAverage, ::testing::ValuesIn(kWireFormats),
                         [](const auto& info) { return std::string(codec::wire::name_of(info.param)); });

}  // namespace
}  // namespace narrowcast::cpu

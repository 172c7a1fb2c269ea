// The plain codec of the variable formats reads messages of any bytes.
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <random>
#include <tuple>
#include <utility>

#include "ops/codec/variable_headers.h"
#include "ops/codec/variable_width.h"
#include "tests/ops/wire_format/variable_inputs.h"
#include "tests/ops/wire_format/variable_model.h"
#include "tests/support/end_of_page.h"
#include "tests/support/sanitized.h"

namespace narrowcast::codec::wire {
namespace {

using test::Bytes;
using test::Floats;
using test::kInf;
using test::ModelHeader;

Floats numbers_of(int bits, const Bytes& bytes, int64_t n) {
  Floats out(static_cast<size_t>(n));
  decode_variable(bits, bytes.data(), n, out.data());
  return out;
}

class VariableBytes : public ::testing::TestWithParam<int> {
 protected:
  const int bits_ = GetParam();
};

INSTANTIATE_TEST_SUITE_P(All, VariableBytes, ::testing::Values(3, 4, 5, 6));

// The step of a block in a message with any step.
float step_that_a_header_says(const uint8_t* message, const ModelHeader& header) {
  const int64_t bits = (message[0] + 256 * int64_t{message[1]}) * 0x10000;
  const auto distance = static_cast<int64_t>(std::ldexp(header.octaves_below, 23));
  const float step = float_of_bits(static_cast<uint32_t>(std::max<int64_t>(bits - distance, 0)));
  return header.is_negative ? -step : step;
}

// The code of element k of a block. Each of its bits, the sign first, is in a separate word.
int code_that_words_say(const uint8_t* words, const ModelHeader& header, int64_t k) {
  int code = 0;
  for (int bit = 0; bit < header.width; ++bit) {
    const int value = 1 << (header.width - 1 - bit);
    if ((words[4 * bit + k / 8] >> (k % 8)) % 2 == 1) code += bit == 0 ? -value : value;
  }
  return code - header.zero_point;
}

// Groups that end behind the message are NaN, and so are all later groups.
Floats numbers_that_bytes_say(int bits, const uint8_t* message, int64_t n) {
  const VariableLayout layout = variable_layout(bits, n);
  const uint8_t* const end = message + layout.bytes;
  const uint8_t* words = message + layout.first_code;
  Floats numbers;
  for (int64_t group = 0; group < n; group += 1024) {
    int64_t bytes = 0;
    for (int64_t i = group; i < std::min(n, group + 1024); i += 32)
      bytes += 4 * ModelHeader::of(message[2 + i / 32]).width;
    const bool is_whole = words != nullptr && bytes <= end - words;
    for (int64_t i = group; i < std::min(n, group + 1024); ++i) {
      const ModelHeader header = ModelHeader::of(message[2 + i / 32]);
      numbers.push_back(is_whole ? step_that_a_header_says(message, header) *
                                       static_cast<float>(code_that_words_say(words, header, i % 32))
                                 : float_of_bits(kQuietNanBits));
      if (is_whole && (i % 32 == 31 || i == n - 1)) words += 4 * header.width;
    }
    if (!is_whole) words = nullptr;
  }
  return numbers;
}

// The step may be any number of either sign; a block's step is never below 0.
TEST(StepOfBlock, IsAsFarBelowAnyStepAsItsHeaderSays) {
  for (uint32_t header = 0; header < 256; ++header) {
    const ModelHeader says = ModelHeader::of(static_cast<int>(header));
    ASSERT_EQ(width_of_header(header), says.width);
    ASSERT_EQ(zero_point_of_header(header), says.zero_point);
    const auto distance = static_cast<int64_t>(std::ldexp(says.octaves_below, 23));
    for (int64_t step = 0; step < 0x10000; step += test::kSanitized ? 61 : 1) {
      const float own = step_of_block(static_cast<uint16_t>(step), header);
      const auto bits = static_cast<uint32_t>(std::max<int64_t>(step * 0x10000 - distance, 0));
      ASSERT_EQ(float_bits(own), bits ^ (says.is_negative ? kSignBit : 0)) << step << " " << header;
    }
  }
  for (const auto& [step, header, own] :
       {std::tuple{0x3F80U, 0x08U, 1.0F}, {0x3F80U, 0x09U, -1.0F},      {0x3F80U, 0x0AU, 0.875F},
        {0x3F80U, 0x3EU, 0x1.4p-7F},      {0x3F80U, 0x3FU, -0x1.4p-7F}, {0x3F80U, 0x07U, 1.0F},
        {0x3F80U, 0x44U, 0x1.Ep-1F},      {0x3F80U, 0xFDU, -0x1.2p-1F}, {0x3FA0U, 0x44U, 1.125F},
        {0xBF80U, 0x10U, -0.5F},          {0xBF80U, 0x11U, 0.5F},       {0x8000U, 0x28U, 0x1p125F},
        {0x7F80U, 0x0AU, 0x1.Cp127F},     {0x7FC0U, 0x0CU, kInf},       {0x0100U, 0x16U, 0x1p-128F},
        {0x0100U, 0x18U, 0.0F},           {0x0100U, 0x3EU, 0.0F},       {0x0008U, 0x44U, 0.0F},
        {0x0011U, 0x45U, -0x1p-133F},     {0x0000U, 0x43U, 0.0F}}) {
    EXPECT_EQ(step_of_block(static_cast<uint16_t>(step), header), own) << step << " " << header;
  }
  EXPECT_TRUE(std::isnan(step_of_block(kNanScale, 0)));
  EXPECT_TRUE(std::isnan(step_of_block(kNanScale, 0x07)));
  EXPECT_TRUE(std::isnan(step_of_block(0x7FFF, 0x5F)));
}

// Any NaN equals any other NaN: the NaN of a product depends on the order of its factors.
bool is_same_number(float a, float b) { return float_bits(a) == float_bits(b) || (std::isnan(a) && std::isnan(b)); }

// A message at the end of accessible memory. Its numbers follow from its bytes. From the first group on that would end
// behind it, they are NaN.
TEST_P(VariableBytes, SayNumbersAndNothingIsReadBehindThem) {
  std::mt19937 engine(5);
  int64_t finite = 0;
  for (const int64_t n : test::kLengths) {
    const VariableLayout layout = variable_layout(bits_, n);
    test::EndOfPage message(static_cast<size_t>(layout.bytes));
    for (int round = 0; round < 60; ++round) {
      std::generate_n(message.data(), layout.bytes, [&] { return static_cast<uint8_t>(round == 0 ? 0xFF : engine()); });
      if (n > 0 && round % 6 > 0) {  // Steps of all signs, NaN and Inf; and widths of which some fit, or all.
        constexpr uint8_t kUpper[] = {0x3F, 0xBF, 0x7F, 0xFF, 0x00};
        message.data()[1] = kUpper[round % 5];
        if (round % 4 == 0) message.data()[0] |= 0x80;
        const auto most = static_cast<uint32_t>(round % 6 == 1 ? 96 : round % 6 < 4 ? 64 : 255);
        for (int64_t i = 2; i < layout.first_code; ++i) {
          if (message.data()[i] >= most || (most == 96 && i % 2 == 0)) message.data()[i] %= 8 + round % 56;
          if (most == 64 && message.data()[i] < 8) message.data()[i] = 0;
        }
      }
      Floats out(static_cast<size_t>(n));
      decode_variable(bits_, message.data(), n, out.data());
      const Floats expected = numbers_that_bytes_say(bits_, message.data(), n);
      for (size_t i = 0; i < out.size(); ++i) {
        ASSERT_TRUE(is_same_number(out[i], expected[i])) << i << " " << round << " " << out[i] << " " << expected[i];
        finite += std::isfinite(out[i]) && out[i] != 0 ? 1 : 0;
      }
    }
  }
  EXPECT_GT(finite, 10000);
}

TEST_P(VariableBytes, AreNanFromTheGroupThatEndsBehindThem) {
  const Floats x = test::all_variable_inputs(3000)[0].second;
  Bytes bytes(static_cast<size_t>(variable_layout(bits_, 3000).bytes));
  encode_variable(bits_, x.data(), 3000, {}, bytes.data());
  const Floats decoded = numbers_of(bits_, bytes, 3000);
  std::fill_n(bytes.begin() + 2 + 32, 32, uint8_t{7});  // Widths of 15 for the second group.
  const Floats nan = numbers_of(bits_, bytes, 3000);
  for (size_t i = 0; i < 3000; ++i) {
    if (i < 1024) {
      ASSERT_EQ(nan[i], decoded[i]);
    } else {
      ASSERT_TRUE(std::isnan(nan[i])) << i;
    }
  }
}

// Two blocks in 36 bytes have 32 bytes for their codes: 8 for a faint block, and 24 for one of 6 bits. All 32 are read.
TEST(VariableMessage, MayBeFullToItsLastByte) {
  Bytes bytes(36, 0);
  bytes[1] = 0x40;      // The step is 2.
  bytes[2] = 0x0E;      // The faint block's step is 3 quarters of an octave below,
  bytes[3] = 0xA8;      // the other one's 2 eighths.
  bytes[4 + 4] = 2;     // Element 1 of the faint block is 1.
  bytes[4 + 8] = 1;     // Element 0 of the other block is -32.
  bytes[4 + 31] = 128;  // Its last element is 1.
  const auto expect = [&](const Floats& faint, float least, float greatest, float zero) {
    const Floats out = numbers_of(3, bytes, 64);
    for (size_t i = 0; i < 64; ++i) {
      const float expected = i < 32 ? faint[i == 1] : i == 32 ? least : i == 63 ? greatest : zero;
      ASSERT_EQ(out[i], expected) << i;
    }
  };
  expect({0, 1.25F}, -56, 1.75F, 0);
  bytes[2] = 0x0F;  // The step is negative.
  bytes[3] = 0xA9;
  expect({0, -1.25F}, 56, -1.75F, 0);
  bytes[2] = 0x2E;  // 16 more quarters below.
  bytes[3] = 0xAA;  // With a zero point of 8.
  expect({0, 0x1.4p-4F}, -70, 1.75F * -7, -14);
  bytes[3] = 0xAB;
  expect({0, 0x1.4p-4F}, 70, 1.75F * 7, 14);
  for (const auto& [faint, wide] : {std::pair{0x0E, 0xC8}, {0x2F, 0xC8}, {0x40, 0xA8}, {0x01, 0xA8}}) {
    bytes[2] = static_cast<uint8_t>(faint);
    bytes[3] = static_cast<uint8_t>(wide);
    for (const float value : numbers_of(3, bytes, 64)) ASSERT_TRUE(std::isnan(value));
  }
}

// No encoder writes this.
TEST(VariableMessage, HasNoZeroPointWithCodesOf8Bits) {
  Bytes bytes(36, 0);
  bytes[1] = 0x40;
  bytes[3 + 28] = 1;  // Element 0 is 1.
  for (const auto& [header, step] : {std::pair{0xE0, 2.0F}, {0xE1, -2.0F}, {0xE4, 1.875F}, {0xFD, -1.125F}}) {
    for (const int zero_point : {0, 2}) {
      bytes[2] = static_cast<uint8_t>(header | zero_point);
      const Floats out = numbers_of(3, bytes, 20);
      EXPECT_EQ(out[0], step) << header;
      EXPECT_EQ(float_bits(out[1]), float_bits(step < 0 ? -0.0F : 0.0F)) << header;
    }
  }
}

// A header may lower the step by more than it has; the step may have any bits. Element 0 has the code 1 with a width of
// 2, the code 2 with a width of 3, and 3 less with a zero point.
TEST(VariableMessage, OfAnyStepHasBlocksBelowItAndNotBelowZero) {
  Bytes bytes(36, 0);
  bytes[3 + 4] = 1;
  for (const auto& [step, header, value] :
       {std::tuple{0x0100, 0x18, 0.0F}, {0x0100, 0x1A, 0.0F},       {0x0100, 0x3E, 0.0F},
        {0x0100, 0x16, 0x1p-128F},      {0x0100, 0x17, -0x1p-128F}, {0x0100, 0x5C, 0x1.2p-125F},
        {0x0100, 0x5F, -0x1.2p-126F},   {0x0008, 0x44, 0.0F},       {0x0000, 0x40, 0.0F},
        {0xBF80, 0x10, -0.5F},          {0xBF80, 0x11, 0.5F},       {0xBF80, 0x08, -1.0F},
        {0xBF80, 0x41, 2.0F},           {0x3F80, 0x42, 1.0F},       {0x3F80, 0x43, -1.0F},
        {0x8000, 0x28, 0x1p125F},       {0x7F80, 0x08, kInf},       {0x7F80, 0x09, -kInf},
        {0x7F80, 0x0A, 0x1.Cp127F},     {0x7FC0, 0x0C, kInf},       {0x7FC0, 0x0E, 0x1.Cp127F},
        {0x7FC0, 0x0F, -0x1.Cp127F},    {0x3F80, 0x00, 0.0F},       {0xBF80, 0x00, 0.0F}}) {
    bytes[0] = static_cast<uint8_t>(step);
    bytes[1] = static_cast<uint8_t>(step >> 8);
    bytes[2] = static_cast<uint8_t>(header);
    EXPECT_EQ(numbers_of(3, bytes, 20)[0], value) << step << " " << header;
  }
  for (const int header : {0x00, 0x08, 0x09, 0x0A, 0x07, 0x40, 0x7F}) {  // All of these steps are NaN.
    bytes[0] = 0xFF;
    bytes[1] = 0x7F;
    bytes[2] = static_cast<uint8_t>(header);
    EXPECT_TRUE(std::isnan(numbers_of(3, bytes, 20)[0])) << header;
  }
}

}  // namespace
}  // namespace narrowcast::codec::wire

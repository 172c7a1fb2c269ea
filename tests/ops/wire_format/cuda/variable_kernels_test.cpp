// The bytes and floats of the variable formats' kernels, compared with the plain codec.
#include <c10/util/BFloat16.h>
#include <c10/util/Half.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <iterator>
#include <limits>
#include <random>
#include <set>
#include <stdexcept>
#include <string>
#include <utility>
#include <vector>

#include "ops/codec/variable_headers.h"
#include "ops/codec/variable_width.h"
#include "tests/ops/wire_format/cuda/placed_array.h"
#include "tests/ops/wire_format/cuda/variable_kernels_on_host.h"
#include "tests/ops/wire_format/variable_inputs.h"

namespace narrowcast::cuda_on_host {
namespace {

using codec::wire::Rounding;
using test::Bytes;
using test::Floats;
using test::same_numbers;

// Parts of blocks, whole blocks, tiles and more.
const std::vector<int64_t> kSizes{0, 1, 7, 31, 32, 33, 127, 128, 129, 255, 256, 257, 1000, 1025, 4097, 9001};
constexpr int64_t kLong = 100003;  // More than kLeastChunk tiles.

// Different at each call.
Rounding next_rounding() {
  static int64_t calls = 0;
  const Rounding roundings[] = {{}, test::kAtRandom, {}, {true, 77, 3, uint64_t{1} << 40}, {}};
  return roundings[++calls % 5];
}

// Alignments in bytes, and the launch.
struct Way {
  int64_t array = 0;
  int64_t message = 0;
  int64_t least_chunk = cuda::kLeastChunk;  // In tiles.
  Turns turns = Turns::kForward;
};

// Different at each call.
Way next_way() {
  static int64_t calls = 0;
  ++calls;
  return {.array = calls % 3 * 8,
          .message = calls % 17,
          .least_chunk = calls % 4 == 0   ? 1
                         : calls % 4 == 1 ? 3
                                          : cuda::kLeastChunk,
          .turns = calls % 2 == 0 ? Turns::kForward : Turns::kBackward};
}

// Arrays in whose tiles many blocks are faint and differ strongly in magnitude. Magnitudes lie far below the step, and
// around it, from the range of a header down to nothing. The step may be one of the least and of the greatest.
std::vector<std::pair<std::string, Floats>> faint_inputs(int64_t n) {
  std::mt19937 engine(static_cast<uint32_t>(n) + 7);
  std::normal_distribution<float> normal;
  const auto sizes = [&](int exponent, auto exponent_of) {
    return test::generate(n, [&](int64_t i) {
      return std::ldexp(normal(engine), exponent + exponent_of(static_cast<int>(i / codec::wire::kVariableBlock)));
    });
  };
  const auto far_below = [](int block) { return block % 5 < 3 ? 0 : -8 - block * 7 % 80; };
  const auto about_the_step = [](int block) { return block % 2 == 0 ? 0 : -block * 3 % 16; };
  const auto about_the_least = [](int block) { return -(block % 7); };
  return {{"far below the step", sizes(0, far_below)},
          {"about the step", sizes(-3, about_the_step)},
          {"far below a great step", sizes(124, far_below)},
          {"about the least step", sizes(-98, about_the_least)}};
}

// Blocks of all widths, whose numbers reach equally far to both sides, farther to one side, or to one side only. Zeros
// between them leave room for wide codes.
Floats sided_input(int64_t n) {
  constexpr float kOtherSides[] = {1, 0.6F, 0.25F, 0};
  std::mt19937 engine(static_cast<uint32_t>(n) + 11);
  std::uniform_real_distribution<float> part;
  return test::generate(n, [&](int64_t i) {
    const int64_t block = i / codec::wire::kVariableBlock;
    const auto sided = static_cast<int>(block / 5);
    if (block % 5 != 0) return 0.0F;
    const float largest = std::ldexp(1.0F, -(sided % 16));
    const float other = largest * kOtherSides[sided / 16 % 4];
    const int64_t k = i % codec::wire::kVariableBlock;
    const float size = k < 2 ? 1.0F : part(engine);
    return ((sided + sided / 16) % 2 == 0 ? size : -size) * (k % 2 == 0 ? largest : -other);
  });
}

// Any of the headers of that width.
uint8_t any_header(int64_t width, std::mt19937& engine) {
  using namespace codec::wire;
  if (width == 0 || width > kMostOwnWidth) return static_cast<uint8_t>(width == 0 ? 0 : width - kMostOwnWidth);
  const uint32_t random = static_cast<uint32_t>(engine());
  if (width == kFaintWidth) return static_cast<uint8_t>(kFirstFaint + random % (kFirstOwn - kFirstFaint));
  return static_cast<uint8_t>(static_cast<uint32_t>(width - 1) << kWidthShift | random % (1U << kWidthShift));
}

class CudaVariable : public ::testing::TestWithParam<int> {
 protected:
  const int bits_ = GetParam();

  int64_t size_of(int64_t n) const { return codec::wire::variable_layout(bits_, n).bytes; }

  Bytes plain_encode(const Floats& x, const Rounding& rounding) const {
    const auto n = static_cast<int64_t>(x.size());
    Bytes bytes(static_cast<size_t>(size_of(n)));
    codec::wire::encode_variable(bits_, x.data(), n, rounding, bytes.data());
    return bytes;
  }

  Floats plain_decode(const Bytes& bytes, int64_t n) const {
    Floats out(static_cast<size_t>(n));
    codec::wire::decode_variable(bits_, bytes.data(), n, out.data());
    return out;
  }

  template <class T>
  Bytes encode(cuda::FloatType type, const std::vector<T>& x, const Rounding& rounding, const Way& way) const {
    const auto n = static_cast<int64_t>(x.size());
    test::PlacedArray<T> placed(x, way.array);
    test::PlacedArray<uint8_t> message(size_of(n), way.message);
    variable_encode({.bits_per_element = bits_,
                     .type = type,
                     .x = placed.data(),
                     .n = n,
                     .rounding = rounding,
                     .message = message.data()},
                    way.least_chunk, way.turns);
    return message.values();
  }

  template <class T>
  std::vector<T> decode(cuda::FloatType type, const Bytes& message, int64_t n, const Way& way) const {
    test::PlacedArray<uint8_t> placed(message, way.message);
    test::PlacedArray<T> out(n, way.array);
    variable_average(
        {.bits_per_element = bits_, .parts = cuda::only_message(placed.data(), n), .type = type, .mean = out.data()},
        way.least_chunk, way.turns);
    return out.values();
  }

  void expect_encodes(const Floats& x, const Rounding& rounding, const Way& way) const {
    SCOPED_TRACE(::testing::Message() << x.size() << " elements, chunks of " << way.least_chunk << ", message at "
                                      << way.message << (rounding.stochastic ? ", at random" : ""));
    const Bytes expected = plain_encode(x, rounding);
    ASSERT_EQ(encode(cuda::FloatType::kFloat32, x, rounding, way), expected);
  }

  void expect_decodes(const Bytes& message, int64_t n, const Way& way) const {
    SCOPED_TRACE(::testing::Message() << n << " elements, chunks of " << way.least_chunk << ", message at "
                                      << way.message);
    ASSERT_TRUE(same_numbers(decode<float>(cuda::FloatType::kFloat32, message, n, way), plain_decode(message, n)));
  }

  template <class T>
  void expect_takes(cuda::FloatType type, const Floats& x) const {
    const std::vector<T> narrow(x.begin(), x.end());
    const Floats floats(narrow.begin(), narrow.end());
    const Bytes message = plain_encode(floats, test::kAtRandom);
    ASSERT_EQ(encode<T>(type, narrow, test::kAtRandom, next_way()), message);
    const Floats expected = plain_decode(message, static_cast<int64_t>(x.size()));
    const std::vector<T> rounded(expected.begin(), expected.end());
    const std::vector<T> decoded = decode<T>(type, message, static_cast<int64_t>(x.size()), next_way());
    ASSERT_TRUE(same_numbers(Floats(decoded.begin(), decoded.end()), Floats(rounded.begin(), rounded.end())));
  }
};

// Each format tests half of the inputs at each size; the next format tests the others.
TEST_P(CudaVariable, GivesTheBytesAndFloatsOfThePlainCodec) {
  int64_t number = bits_;
  for (const int64_t n : kSizes) {
    for (const auto& [name, x] : test::variable_inputs(n)) {
      if (++number % 2 == 0) continue;
      SCOPED_TRACE(name);
      ASSERT_NO_FATAL_FAILURE(expect_encodes(x, next_rounding(), next_way()));
      ASSERT_NO_FATAL_FAILURE(expect_decodes(plain_encode(x, {}), n, next_way()));
    }
  }
}

TEST_P(CudaVariable, TakesFaintBlocks) {
  for (const int64_t n : kSizes) {
    for (const auto& [name, x] : test::some_of(faint_inputs(n))) {
      SCOPED_TRACE(name);
      for (const Rounding& rounding : {test::kNearest, test::kAtRandom}) {
        ASSERT_NO_FATAL_FAILURE(expect_encodes(x, rounding, next_way()));
      }
      ASSERT_NO_FATAL_FAILURE(expect_decodes(plain_encode(x, next_rounding()), n, next_way()));
    }
  }
}

// Checks that the inputs of the test above have faint blocks as far below the step as possible.
TEST_P(CudaVariable, HasFaintInputs) {
  constexpr int64_t kSize = 9001;
  constexpr uint8_t kFarthest = codec::wire::kFirstFaint + 2 * codec::wire::kMostFaint;  // With a positive step.
  int64_t farthest[2] = {};
  for (const auto& [name, x] : faint_inputs(kSize)) {
    SCOPED_TRACE(name);
    const Bytes message = plain_encode(x, test::kAtRandom);
    const auto headers = message.begin() + codec::wire::kStepBytes;
    const auto behind = headers + codec::wire::blocks_of(kSize);
    EXPECT_GT(
        std::count_if(headers, behind,
                      [](uint8_t header) { return codec::wire::width_of_header(header) == codec::wire::kFaintWidth; }),
        30);
    for (const int sign : {0, 1}) farthest[sign] += std::count(headers, behind, kFarthest + sign);
  }
  EXPECT_GT(farthest[0], 10);
  EXPECT_GT(farthest[1], 10);
}

TEST_P(CudaVariable, TakesBlocksOfAllWidthsAndSides) {
  for (const int64_t n : kSizes) {
    const Floats x = sided_input(n);
    for (const Rounding& rounding : {test::kNearest, test::kAtRandom}) {
      ASSERT_NO_FATAL_FAILURE(expect_encodes(x, rounding, next_way()));
      ASSERT_NO_FATAL_FAILURE(expect_decodes(plain_encode(x, rounding), n, next_way()));
    }
  }
}

TEST_P(CudaVariable, HasInputOfAllWidthsAndSides) {
  using namespace codec::wire;
  constexpr int64_t kSize = 9001;
  std::set<uint32_t> widths, negative, about_zero_points;
  const Bytes message = plain_encode(sided_input(kSize), test::kNearest);
  for (int64_t i = kStepBytes; i < kStepBytes + blocks_of(kSize); ++i) {
    const uint32_t header = message[static_cast<size_t>(i)];
    widths.insert(width_of_header(header));
    if (step_of_block(kLeastStep, header) < 0) negative.insert(width_of_header(header));
    if (zero_point_of_header(header) != 0) about_zero_points.insert(width_of_header(header));
  }
  EXPECT_EQ(widths, (std::set<uint32_t>{0, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15}));
  EXPECT_EQ(negative, (std::set<uint32_t>{2, 3, 4, 5, 6, 7, 8}));
  EXPECT_EQ(about_zero_points, (std::set<uint32_t>{3, 4, 5, 6, 7}));
}

TEST_P(CudaVariable, TakesLongArrays) {
  const auto inputs = test::all_variable_inputs(kLong);
  for (const int64_t least_chunk : {20, 64}) {
    const Floats& x = inputs[least_chunk == 20 ? 1 : 0].second;
    const Way way{.message = 1, .least_chunk = least_chunk};
    ASSERT_NO_FATAL_FAILURE(expect_encodes(x, least_chunk == 20 ? test::kAtRandom : test::kNearest, way));
    ASSERT_NO_FATAL_FAILURE(expect_decodes(plain_encode(x, {}), kLong, way));
  }
}

TEST_P(CudaVariable, WritesAndReadsAtAnyAddress) {
  const Floats x = test::all_variable_inputs(1321)[1].second;
  const Bytes message = plain_encode(x, {});
  for (int64_t shift = 0; shift < 16; ++shift) {
    const Way way{.array = shift * 4,
                  .message = shift,
                  .least_chunk = 1,
                  .turns = shift % 3 == 0 ? Turns::kBackward : Turns::kForward};
    ASSERT_NO_FATAL_FAILURE(expect_encodes(x, {}, way));
    ASSERT_NO_FATAL_FAILURE(expect_decodes(message, 1321, way));
  }
}

TEST_P(CudaVariable, TakesTheOtherElementTypes) {
  for (const auto& [name, x] : test::variable_inputs(1057)) {
    SCOPED_TRACE(name);
    ASSERT_NO_FATAL_FAILURE(expect_takes<double>(cuda::FloatType::kFloat64, x));
    ASSERT_NO_FATAL_FAILURE(expect_takes<c10::BFloat16>(cuda::FloatType::kBfloat16, x));
    ASSERT_NO_FATAL_FAILURE(expect_takes<c10::Half>(cuda::FloatType::kFloat16, x));
  }
}

// Anywhere: in any lane, warp, tile and chunk.
TEST_P(CudaVariable, MakesNanOfAMessageWithWhatIsNoNumber) {
  constexpr float kInf = std::numeric_limits<float>::infinity();
  const float kTooGreat = codec::float_of_bits(codec::wire::kGreatestMagnitudeBits + 1);
  const float bad[] = {std::nanf(""), kInf, -kInf, kTooGreat, -kTooGreat};
  constexpr size_t kSize = 5000;
  for (size_t at = 0; at < kSize; at += test::kSanitized ? 997 : 197) {
    Floats x(kSize, 0.25F);
    x[at] = bad[at % 5];
    Bytes expected(static_cast<size_t>(size_of(kSize)), 0);
    expected[0] = 0xC0;
    expected[1] = 0x7F;
    ASSERT_EQ(encode(cuda::FloatType::kFloat32, x, next_rounding(), next_way()), expected);
  }
}

// Bytes that no encoder writes, and widths with which the codes end before the message's end, at it, and after it.
TEST_P(CudaVariable, ReadsAnyBytes) {
  std::mt19937 engine(5);
  for (const int64_t n : {1, 40, 1024, 3001, 9000}) {
    for (size_t turn = 0; turn < 10; ++turn) {
      Bytes message(static_cast<size_t>(size_of(n)));
      for (uint8_t& byte : message) byte = static_cast<uint8_t>(engine());
      // The width of most blocks; later turns have random headers.
      const int64_t most[] = {0, codec::wire::kFaintWidth, 3, 5, 7, 8, 9, bits_ - 1};
      const int64_t first_code = codec::wire::variable_layout(bits_, n).first_code;
      for (int64_t i = codec::wire::kStepBytes; i < first_code && turn < std::size(most); ++i) {
        uint8_t& header = message[static_cast<size_t>(i)];
        if (i % 50 != 0) header = any_header(most[turn], engine);
      }
      ASSERT_NO_FATAL_FAILURE(expect_decodes(message, n, next_way()));
    }
  }
}

// Headers of many faint blocks and others in any order, whose codes take `words` words.
Bytes headers_of(int64_t blocks, int64_t words, std::mt19937& engine) {
  constexpr auto kMost = int64_t{codec::wire::kMostWidth};
  Bytes headers;
  for (int64_t faint = blocks / 3; faint > 0; --faint) {
    headers.push_back(any_header(codec::wire::kFaintWidth, engine));
    words -= codec::wire::kFaintWidth;
  }
  while (words > 0) {
    const int64_t width = words <= kMost ? words : std::min(words / 2, kMost);
    headers.push_back(any_header(width, engine));
    words -= width;
  }
  EXPECT_LE(static_cast<int64_t>(headers.size()), blocks);
  while (static_cast<int64_t>(headers.size()) < blocks) headers.push_back(any_header(0, engine));
  std::shuffle(headers.begin(), headers.end(), engine);
  return headers;
}

// The last tile ends one word before the last whole word, at it, or one word after it. The word after it begins in the
// message or at its end: 0, 1, 2 or 3 bytes follow the last whole word, depending on the number of blocks.
TEST_P(CudaVariable, ReadsATileIfItIsWhole) {
  std::mt19937 engine(6);
  for (const int64_t n : {1000, 1024, 1050, 3001, 3009, 9000}) {
    const codec::wire::VariableLayout layout = codec::wire::variable_layout(bits_, n);
    const int64_t whole_words = layout.code_bytes / codec::wire::kWordBytes;
    for (int64_t missing = -1; missing <= 1; ++missing) {
      SCOPED_TRACE(::testing::Message() << n << " elements, " << layout.code_bytes % codec::wire::kWordBytes
                                        << " bytes that fill no word, " << missing << " words missing");
      Bytes message(static_cast<size_t>(layout.bytes));
      for (uint8_t& byte : message) byte = static_cast<uint8_t>(engine());
      message[1] = 0x3F;  // Makes the step a number.
      const Bytes headers = headers_of(layout.blocks, whole_words + missing, engine);
      std::copy(headers.begin(), headers.end(), message.begin() + codec::wire::kStepBytes);
      ASSERT_EQ(std::isnan(plain_decode(message, n).back()), missing > 0);
      ASSERT_NO_FATAL_FAILURE(expect_decodes(message, n, next_way()));
    }
  }
}

INSTANTIATE_TEST_SUITE_P(All, CudaVariable, ::testing::Values(6, 5, 4, 3),
                         [](const auto& info) { return "var" + std::to_string(info.param); });

// Launches check it first: a kernel must not return as if it had no work.
TEST(CudaVariableKernels, FailForAnUnknownElementType) {
  constexpr auto kUnknown = static_cast<cuda::FloatType>(4);
  Bytes message(36);
  float array = 0;
  EXPECT_THROW(
      variable_encode({.bits_per_element = 5, .type = kUnknown, .x = &array, .n = 1, .message = message.data()}, 1,
                      Turns::kForward),
      std::invalid_argument);
  EXPECT_THROW(
      variable_average(
          {.bits_per_element = 5, .parts = cuda::only_message(message.data(), 1), .type = kUnknown, .mean = &array}, 1,
          Turns::kForward),
      std::invalid_argument);
}

}  // namespace
}  // namespace narrowcast::cuda_on_host

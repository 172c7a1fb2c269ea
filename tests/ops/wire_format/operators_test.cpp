// The operators on wire formats: contract, errors, layouts, threads, devices, autograd.
#include <narrowcast/wire_format.h>

#include <ATen/ATen.h>
#include <gtest/gtest.h>

#include <sstream>
#include <stdexcept>
#include <string>
#include <tuple>

#include <narrowcast/errors.h>
#include "tests/ops/wire_format/wire_inputs.h"
#include "tests/support/devices.h"
#include "tests/support/error_message.h"

namespace narrowcast {
namespace {

using test::same_bits;
using testing::error_message;

std::string names_of_table() {
  std::string names;
  for (const WireFormatRow& row : kWireFormatRows) names.append(names.empty() ? "" : ", ").append(row.name);
  return names;
}

at::Tensor expected_bytes(const at::Tensor& x, WireFormat format) {
  const at::Tensor flat = x.to(at::kFloat).resolve_neg().contiguous();
  const test::Floats floats(flat.const_data_ptr<float>(), flat.const_data_ptr<float>() + flat.numel());
  const test::Bytes bytes = test::plain_encode(format, floats, test::kNearest);
  return at::tensor(bytes, at::kByte);
}

TEST(WireFormatNames, PrintAndParse) {
  EXPECT_EQ(wire_format_names(), names_of_table());
  for (const WireFormat format : kWireFormats) {
    std::ostringstream text;
    text << format;
    EXPECT_EQ(parse_wire_format(text.str()), format);
  }
}

TEST(WireFormatNames, RefuseWhatIsNone) {
  for (const std::string name : {"", "int8", "INT8_B32", "fp32 "}) {
    EXPECT_EQ(error_message<c10::ValueError>([&] { parse_wire_format(name); }),
              "format: unknown name '" + name + "'; known: " + names_of_table());
  }
  EXPECT_EQ(error_message<c10::ValueError>([] { to_string(static_cast<WireFormat>(70)); }),
            "format 70 is not a valid WireFormat");
  EXPECT_THROW(codec::wire::name_of(static_cast<WireFormat>(70)), std::invalid_argument);
}

constexpr int64_t kSizes[] = {0, 1, 3, 32, 33, 128, 129, 257};

TEST(EncodedSize, IsTheSizeOfTheMessage) {
  for (const WireFormat format : kWireFormats) {
    for (const int64_t numel : kSizes) {
      EXPECT_EQ(encoded_size(numel, format), encode(at::randn({numel}), format).numel()) << format << " of " << numel;
    }
  }
}

// One format of each kind: with scales, with elements alone, and of variable width.
TEST(EncodedSize, CountsScalesAndWholeBytes) {
  const auto sizes = [](WireFormat format) {
    std::vector<int64_t> result;
    for (const int64_t numel : kSizes) result.push_back(encoded_size(numel, format));
    return result;
  };
  using Sizes = std::vector<int64_t>;
  EXPECT_EQ(sizes(WireFormat::kInt8B128), (Sizes{0, 3, 5, 34, 35, 130, 133, 263}));
  EXPECT_EQ(sizes(WireFormat::kInt4B32), (Sizes{0, 3, 4, 18, 21, 72, 75, 147}));
  EXPECT_EQ(sizes(WireFormat::kBf16), (Sizes{0, 2, 6, 64, 66, 256, 258, 514}));
  EXPECT_EQ(sizes(WireFormat::kVar4), (Sizes{0, 36, 36, 36, 36, 64, 80, 144}));
}

class WireOperators : public ::testing::TestWithParam<std::tuple<WireFormat, c10::DeviceType>> {
 protected:
  void SetUp() override { NARROWCAST_SKIP_WITHOUT(device_); }

  // x: on the CPU.
  void expect_round_trip(const at::Tensor& x) const {
    const at::Tensor bytes = encode(on_device(x), format_);
    EXPECT_EQ(bytes.device().type(), device_);
    EXPECT_TRUE(same_bits(bytes.cpu(), expected_bytes(x, format_)));
    const at::Tensor decoded = decode(bytes, format_, x.numel());
    EXPECT_EQ(decoded.device().type(), device_);
    const at::Tensor message = bytes.cpu();
    const auto* const begin = message.const_data_ptr<uint8_t>();
    const test::Floats floats = test::plain_decode(format_, test::Bytes(begin, begin + message.numel()), x.numel());
    EXPECT_TRUE(same_bits(decoded.cpu(), at::tensor(floats, at::kFloat)));
  }

  // The same elements with the same strides on the test's device.
  at::Tensor on_device(const at::Tensor& x) const {
    if (device_ == c10::DeviceType::CPU) return x;
    const at::Tensor storage = at::empty({0}, x.options()).set_(x.storage()).to(device_);
    const at::Tensor moved = storage.as_strided(x.sizes(), x.strides(), x.storage_offset());
    return x.is_neg() ? at::_neg_view(moved) : moved;
  }

  const WireFormat format_ = std::get<0>(GetParam());
  const c10::DeviceType device_ = std::get<1>(GetParam());
};

TEST_P(WireOperators, EncodeAnyLayoutInOrder) {
  const at::Tensor base = at::randn({6, 8, 10});
  for (const at::Tensor& x :
       {base, base[0][0][0], base.transpose(0, 2), base.slice(0, 1, 6, 2), base.slice(2, 0, 10, 3), at::_neg_view(base),
        base.select(2, 0).unsqueeze(1).expand({6, 4, 8}), base.as_strided({5, 4}, {1, 1}), at::empty({0, 3})}) {
    SCOPED_TRACE(::testing::Message() << x.sizes() << x.strides());
    expect_round_trip(x);
  }
}

TEST_P(WireOperators, TakeTheFloatTypes) {
  for (const at::ScalarType dtype : {at::kDouble, at::kBFloat16, at::kHalf}) {
    expect_round_trip(at::randn({3, 100}).to(dtype));
  }
}

TEST_P(WireOperators, TakeHostileInputsOfAnySize) {
  for (const int64_t size : {1, 31, 33, 129, 257, 1000, 4097, 1000003}) {
    for (const auto& [name, x] : test::wire_inputs(size)) {
      SCOPED_TRACE(::testing::Message() << name << " of size " << size);
      expect_round_trip(at::tensor(x));
    }
  }
}

// At any address of the elements and the message.
TEST_P(WireOperators, TakeAnyAddress) {
  const at::Tensor x = at::randn({1500});
  for (const int64_t begin : {1, 2, 3, 5}) {
    const at::Tensor bytes = encode(on_device(x).slice(0, begin), format_);
    EXPECT_TRUE(same_bits(bytes.cpu(), expected_bytes(x.slice(0, begin), format_)));
    const at::Tensor moved = at::cat({bytes.slice(0, 0, begin), bytes}).slice(0, begin);
    EXPECT_TRUE(same_bits(decode(moved, format_, 1500 - begin), decode(bytes, format_, 1500 - begin)));
  }
}

TEST_P(WireOperators, RoundAtRandomAlikeOnEveryDevice) {
  const at::Tensor x = at::randn({70001});
  for (const int64_t offset : {0, 1, 1024}) {
    const EncodeOptions options{.seed = 3, .step = 4, .offset = offset};
    EXPECT_TRUE(same_bits(encode(on_device(x), format_, options).cpu(), encode(x, format_, options)));
  }
}

TEST_P(WireOperators, DecodeBytesOfAnyStride) {
  const at::Tensor x = at::randn({500});
  const at::Tensor bytes = encode(on_device(x), format_);
  const at::Tensor strided = at::stack({bytes, bytes}, 1).select(1, 1);
  EXPECT_TRUE(same_bits(decode(strided, format_, 500), decode(bytes, format_, 500)));
}

TEST_P(WireOperators, RefuseAMessageOfAnotherLength) {
  const at::Tensor bytes = encode(on_device(at::ones({300})), format_);
  for (const at::Tensor& wrong : {bytes.slice(0, 1), at::cat({bytes, bytes.slice(0, 0, 1)}), bytes.slice(0, 0, 0)}) {
    const std::string size = std::to_string(encoded_size(300, format_));
    EXPECT_EQ(error_message<CorruptInputError>([&] { decode(wrong, format_, 300); }),
              "bytes holds " + std::to_string(wrong.numel()) + " bytes, but 300 elements in " +
                  std::string(to_string(format_)) + " take " + size);
  }
}

class WireOperatorsOfAFormat : public ::testing::TestWithParam<WireFormat> {
 protected:
  const WireFormat format_ = GetParam();
};

TEST_P(WireOperatorsOfAFormat, GiveEqualBitsOnAnyNumberOfThreads) {
  const at::Tensor x = at::randn({300007});
  const test::UseThreads one(1);
  const at::Tensor bytes = encode(x, format_);
  const at::Tensor decoded = decode(bytes, format_, x.numel());
  for (const int threads : {2, 4}) {
    const test::UseThreads several(threads);
    EXPECT_TRUE(same_bits(encode(x, format_), bytes));
    EXPECT_TRUE(same_bits(decode(bytes, format_, x.numel()), decoded));
  }
}

TEST_P(WireOperatorsOfAFormat, KnowTheirOutputOnTheMetaDevice) {
  const at::Tensor x = at::empty({4, 60}, at::device(at::kMeta).dtype(at::kBFloat16)).t();
  const at::Tensor bytes = encode(x, format_, {.seed = 1});
  EXPECT_TRUE(bytes.is_meta() && bytes.is_contiguous());
  EXPECT_EQ(bytes.sizes(), at::IntArrayRef({encoded_size(240, format_)}));
  EXPECT_EQ(bytes.scalar_type(), at::kByte);
  const at::Tensor decoded = decode(bytes, format_, 240);
  EXPECT_TRUE(decoded.is_meta());
  EXPECT_EQ(decoded.sizes(), at::IntArrayRef({240}));
  EXPECT_EQ(decoded.scalar_type(), at::kFloat);
  EXPECT_THROW(decode(bytes, format_, 700), CorruptInputError);
}

INSTANTIATE_TEST_SUITE_P(All, WireOperators, ::testing::Combine(::testing::ValuesIn(kWireFormats), test::kDevices),
                         [](const auto& info) {
                           return std::string(to_string(std::get<0>(info.param))) + "_" +
                                  test::name_of(std::get<1>(info.param));
                         });

INSTANTIATE_TEST_SUITE_P(All, WireOperatorsOfAFormat, ::testing::ValuesIn(kWireFormats),
                         [](const auto& info) { return std::string(to_string(info.param)); });

TEST(WireOperatorErrors, NameTheArgumentAndItsValue) {
  const at::Tensor x = at::ones({2});
  const auto value_error = [](const auto& call) { return error_message<c10::ValueError>(call); };
  const auto type_error = [](const auto& call) { return error_message<c10::TypeError>(call); };
  constexpr WireFormat kFormat = WireFormat::kInt8B128;
  EXPECT_EQ(type_error([&] { encode(x.to(at::kInt), kFormat); }),
            "x must be float32, float64, bfloat16 or float16, not Int");
  EXPECT_EQ(type_error([&] { decode(x, kFormat, 2); }), "bytes must be uint8, not Float");
  EXPECT_EQ(value_error([&] { encode(x, kFormat, {.seed = 1, .step = -2}); }), "step must be at least 0, not -2");
  EXPECT_EQ(value_error([&] { encode(x, kFormat, {.offset = -3}); }), "offset must be at least 0, not -3");
  EXPECT_EQ(value_error([&] { encoded_size(-1, kFormat); }), "numel must be at least 0, not -1");
  EXPECT_EQ(value_error([&] { decode(x.to(at::kByte), kFormat, -1); }), "numel must be at least 0, not -1");
  EXPECT_EQ(value_error([&] {
              decode(at::ones({2, 2}, at::kByte), kFormat, 2);
            }),
            "bytes must have 1 dimension, but has shape [2, 2]");
  EXPECT_EQ(value_error([&] { encode({}, kFormat); }), "x is an undefined tensor");
  EXPECT_EQ(value_error([&] { decode({}, kFormat, 1); }), "bytes is an undefined tensor");
}

// Called with a name, like TorchScript and Python do.
TEST(WireOperatorErrors, ListTheKnownFormats) {
  torch::jit::Stack stack{at::ones({1}), "int5_b32", c10::IValue(), 0, 0};
  const auto op = c10::Dispatcher::singleton().findSchemaOrThrow("narrowcast::encode", "");
  EXPECT_EQ(error_message<c10::ValueError>([&] { op.callBoxed(stack); }),
            std::string("format: unknown name 'int5_b32'; known: ") + names_of_table());
}

TEST(WireOperatorsAutograd, TakeBytesForConstants) {
  const at::Tensor x = at::randn({40}).requires_grad_();
  const at::Tensor bytes = encode(x, WireFormat::kInt8B32);
  EXPECT_FALSE(bytes.requires_grad());
  EXPECT_ANY_THROW(decode(bytes, WireFormat::kInt8B32, 40).sum().backward());
}

}  // namespace
}  // namespace narrowcast

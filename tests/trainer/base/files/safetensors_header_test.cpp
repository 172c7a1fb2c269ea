// Headers that a reader must refuse or accept, by examples and by mutations.
#include "trainer/base/files/safetensors_header.h"

#include <ATen/ATen.h>
#include <gtest/gtest.h>

#include <cinttypes>
#include <cstdint>
#include <cstdio>
#include <ostream>
#include <string>

#include <narrowcast/errors.h>
#include "tests/support/error_message.h"

namespace narrowcast::files {
namespace {

using narrowcast::testing::error_message;

// The header of one tensor "t" from its three values.
std::string one_tensor(const std::string& dtype, const std::string& shape, const std::string& offsets) {
  return R"({"t":{"dtype":)" + dtype + R"(,"shape":)" + shape + R"(,"data_offsets":)" + offsets + "}}";
}

struct RefusedHeader {
  std::string header;
  std::string message;  // after "PATH: byte N: "
  int64_t data_bytes = 4;
};

void PrintTo(const RefusedHeader& refused, std::ostream* out) { *out << refused.header.substr(0, 60); }

class SafetensorsRefusedHeader : public ::testing::TestWithParam<RefusedHeader> {};

TEST_P(SafetensorsRefusedHeader, IsCorruptInputThatSaysWhy) {
  const RefusedHeader& refused = GetParam();
  const std::string message =
      error_message<CorruptInputError>([&] { parse_safetensors_header(refused.header, refused.data_bytes, "PATH"); });
  int64_t byte = -1;
  std::sscanf(message.c_str(), "PATH: byte %" SCNd64, &byte);
  EXPECT_EQ(message, "PATH: byte " + std::to_string(byte) + ": " + refused.message);
  EXPECT_GE(byte, kLengthBytes);
  EXPECT_LE(byte, kLengthBytes + std::ssize(refused.header) + refused.data_bytes);
}

// Offsets in the file, whose header begins at byte 8: of the last byte of the header that was read, or of wrong data.
TEST(SafetensorsHeader, ErrorsNameTheByte) {
  const auto byte_of = [](const std::string& header, int64_t data_bytes = 4) {
    const std::string message =
        error_message<CorruptInputError>([&] { parse_safetensors_header(header, data_bytes, "PATH"); });
    return message.substr(0, message.find(':', std::string("PATH: byte").size()));
  };
  EXPECT_EQ(byte_of("x{}"), "PATH: byte 8");
  EXPECT_EQ(byte_of("{"), "PATH: byte 9") << "which is missing";
  EXPECT_EQ(byte_of("{} x"), "PATH: byte 11");
  EXPECT_EQ(byte_of(std::string("{}\0", 3)), "PATH: byte 10");
  EXPECT_EQ(byte_of(R"({"t":null})"), "PATH: byte 16");
  EXPECT_EQ(byte_of(R"({"t":{"dtype":"F31"}})"), "PATH: byte 26");
  EXPECT_EQ(byte_of(R"({"t":{"shape":[[]]}})"), "PATH: byte 23");
  const std::string two =
      R"({"a":{"dtype":"U8","shape":[2],"data_offsets":[0,2]},"b":{"dtype":"U8","shape":[1],"data_offsets":[3,4]}})";
  EXPECT_EQ(byte_of(two), "PATH: byte " + std::to_string(8 + two.size() + 2));
  EXPECT_EQ(byte_of("{}", 4), "PATH: byte 10");
  EXPECT_EQ(byte_of(one_tensor("\"F32\"", "[1]", "[0,4]"), 3),
            "PATH: byte " + std::to_string(8 + one_tensor("\"F32\"", "[1]", "[0,4]").size() + 3));
}

INSTANTIATE_TEST_SUITE_P(
    Syntax, SafetensorsRefusedHeader,
    ::testing::Values(RefusedHeader{"", "the header does not begin with '{'"},
                      RefusedHeader{"[]", "the header does not begin with '{'"},
                      RefusedHeader{"\xef\xbb\xbf{}", "the header does not begin with '{'"},
                      RefusedHeader{" {}", "the header does not begin with '{'"},
                      RefusedHeader{"{", "header: not valid JSON"}, RefusedHeader{"{}}", "header: not valid JSON"},
                      RefusedHeader{"{} x", "header: not valid JSON"},
                      RefusedHeader{std::string("{}\0", 3), "header: not valid JSON, it has a zero byte"},
                      RefusedHeader{"{\"\xff\":{}}", "header: not valid JSON"},
                      RefusedHeader{"{\"\xed\xa0\x80\":{}}", "header: not valid JSON"},
                      RefusedHeader{"{\"\\ud800\":{}}", "header: not valid JSON"},
                      RefusedHeader{"{/**/}", "header: not valid JSON"},
                      RefusedHeader{"{\"t\":{\"shape\":[1e999]}}", "header: not valid JSON"}));

INSTANTIATE_TEST_SUITE_P(
    Keys, SafetensorsRefusedHeader,
    ::testing::Values(
        RefusedHeader{R"({"t":1})", R"(header: 't' holds a number, which is not allowed)"},
        RefusedHeader{R"({"t":null})", R"(header: 't' holds null, which is not allowed)"},
        RefusedHeader{R"({"t":[]})", R"(header: 't' holds an array, which is not allowed)"},
        RefusedHeader{R"({"t":{}})", R"(header: tensor 't' lacks dtype, shape or data_offsets)"},
        RefusedHeader{R"({"t":{"dtype":"U8","shape":[4]}})",
                      R"(header: tensor 't' lacks dtype, shape or data_offsets)"},
        RefusedHeader{R"({"t":{"extra":1}})", R"(header: tensor 't' has the unknown key 'extra')"},
        RefusedHeader{R"({"t":{"dtype":"U8","dtype":"U8"}})", R"(header: duplicate key 'dtype')"},
        RefusedHeader{R"({"t":{"dtype":"U8","shape":[4],"data_offsets":[0,4]},"t":{}})",
                      R"(header: duplicate key 't')"},
        RefusedHeader{R"({"t":{"dtype":"U8","shape":[4],"data_offsets":[0,4]},"\u0074":{}})",
                      R"(header: duplicate key 't')"},
        RefusedHeader{R"({"__metadata__":{},"__metadata__":{}})", R"(header: duplicate key '__metadata__')"},
        RefusedHeader{R"({"__metadata__":{"a":"1","a":"1"}})", R"(header: duplicate key 'a')"},
        RefusedHeader{R"({"__metadata__":{"a":1}})",
                      R"(header: '__metadata__', 'a' holds a number, which is not allowed)"},
        RefusedHeader{R"({"__metadata__":{"a":{}}})",
                      R"(header: '__metadata__', 'a' holds an object, which is not allowed)"},
        RefusedHeader{R"({"__metadata__":"x"})", R"(header: '__metadata__' holds a string, which is not allowed)"},
        RefusedHeader{"{\"a\\nb\":1}", R"(header: 'a\nb' holds a number, which is not allowed)"},
        RefusedHeader{"{\"" + std::string(1000, 'n') + "\":1}", "header: '" + std::string(93, 'n') + " [1000 bytes] " +
                                                                    std::string(93, 'n') +
                                                                    "' holds a number, which is not allowed"}));

// A float32 tensor with an invalid element in its shape, and one whose shape is too large.
RefusedHeader bad_shape(const std::string& shape, const std::string& what) {
  return {one_tensor("\"F32\"", shape, "[0,4]"), "header: 't', 'shape' holds " + what + ", which is not allowed"};
}
RefusedHeader overflow(const std::string& shape, int64_t bytes) {
  return {one_tensor("\"F32\"", shape, "[0," + std::to_string(bytes) + "]"),
          "header: tensor 't' has a shape that overflows", bytes};
}

INSTANTIATE_TEST_SUITE_P(
    Values, SafetensorsRefusedHeader,
    ::testing::Values(
        RefusedHeader{one_tensor("\"F31\"", "[1]", "[0,4]"),
                      R"(header: tensor 't' has the dtype 'F31', which is unknown or not supported)"},
        RefusedHeader{one_tensor("1", "[1]", "[0,4]"), R"(header: 't', 'dtype' holds a number, which is not allowed)"},
        RefusedHeader{one_tensor("\"F32\"", "[9223372036854775808]", "[0,4]"),
                      R"(header: tensor 't' has the number 9223372036854775808 above 2^63-1)"},
        bad_shape("1", "a number"), bad_shape("[[1]]", "an array"), bad_shape("[-1]", "a negative number"),
        bad_shape("[1.0]", "a fractional or huge number"), bad_shape("[true]", "a boolean"),
        bad_shape("[18446744073709551616]", "a fractional or huge number"), overflow("[4294967296,4294967296]", 4),
        overflow("[4611686018427387904]", 4), overflow("[0,4294967296,4294967296]", 0)));

INSTANTIATE_TEST_SUITE_P(
    Ranges, SafetensorsRefusedHeader,
    ::testing::Values(
        RefusedHeader{one_tensor("\"F32\"", "[1]", "[0]"), R"(header: tensor 't' has 1 data_offsets instead of 2)"},
        RefusedHeader{one_tensor("\"F32\"", "[1]", "[0,4,8]"), R"(header: tensor 't' has 3 data_offsets instead of 2)"},
        RefusedHeader{one_tensor("\"F32\"", "[1]", "[4,0]"),
                      R"(header: tensor 't' begins at byte 4 of the data instead of at byte 0)"},
        RefusedHeader{one_tensor("\"F32\"", "[1]", "[0,3]"),
                      R"(header: tensor 't' has the range 0..3, but shape and dtype need 4 bytes)"},
        RefusedHeader{one_tensor("\"F32\"", "[1]", "[0,4]"), "the header describes 4 bytes of data, but 5 follow it",
                      5},
        RefusedHeader{one_tensor("\"F32\"", "[1]", "[0,4]"), "the header describes 4 bytes of data, but 3 follow it",
                      3},
        RefusedHeader{"{}", "the header describes 0 bytes of data, but 4 follow it"},
        RefusedHeader{R"({"a":{"dtype":"U8","shape":[2],"data_offsets":[0,2]},)"
                      R"("b":{"dtype":"U8","shape":[1],"data_offsets":[3,4]}})",
                      R"(header: tensor 'b' begins at byte 3 of the data instead of at byte 2)"},
        RefusedHeader{R"({"a":{"dtype":"U8","shape":[3],"data_offsets":[0,3]},)"
                      R"("b":{"dtype":"U8","shape":[2],"data_offsets":[2,4]}})",
                      R"(header: tensor 'b' begins at byte 2 of the data instead of at byte 3)"}));

TEST(SafetensorsHeader, TooManyDimensionsAreRefused) {
  std::string shape = "[1";
  for (size_t i = 1; i < kMostDimensions; ++i) {
    shape += ",1";
  }
  EXPECT_EQ(
      parse_safetensors_header(one_tensor("\"U8\"", shape + "]", "[0,1]"), 1, "PATH").tensors.at(0).second.shape.size(),
      kMostDimensions);
  EXPECT_THROW(parse_safetensors_header(one_tensor("\"U8\"", shape + ",1]", "[0,1]"), 1, "PATH"), CorruptInputError);
}

TEST(SafetensorsHeader, DeepNestingIsRefusedAtOnce) {
  for (const char* opening : {"[", "{\"a\":"}) {
    std::string header = "{\"t\":{\"shape\":";
    for (int depth = 0; depth < 1000000; ++depth) {
      header += opening;
    }
    EXPECT_THROW(parse_safetensors_header(header, 0, "PATH"), CorruptInputError);
  }
}

TEST(SafetensorsHeader, AnyOrderOfKeysSpacesAndEscapesAreAccepted) {
  const std::string header =
      "{ \"z\" : {\"data_offsets\":[0,2],\n\"shape\":[2],\t\"dtype\":\"I8\"} ,\r"
      "\"\\u0061\":{\"shape\":[],\"dtype\":\"F64\",\"data_offsets\":[2,10]},\"__metadata__\":{\"k\":\"\\u00e9\"}}   ";
  const SafetensorsHeader parsed = parse_safetensors_header(header, 10, "PATH");
  ASSERT_EQ(parsed.tensors.size(), 2);
  EXPECT_EQ(parsed.tensors[0].first, "z");
  EXPECT_EQ(parsed.tensors[0].second.dtype, at::kChar);
  EXPECT_EQ(parsed.tensors[1].first, "a");
  EXPECT_EQ(parsed.tensors[1].second.begin, 2);
  EXPECT_TRUE(parsed.tensors[1].second.shape.empty());
  EXPECT_EQ(parsed.metadata.at("k"), "\xc3\xa9");
}

TEST(SafetensorsHeader, EmptyTensorsMayShareAPlace) {
  const std::string header =
      R"({"a":{"dtype":"U8","shape":[0],"data_offsets":[0,0]},"b":{"dtype":"U8","shape":[4],"data_offsets":[0,4]},)"
      R"("c":{"dtype":"F64","shape":[3,0],"data_offsets":[0,0]},"d":{"dtype":"F64","shape":[0],"data_offsets":[4,4]}})";
  const SafetensorsHeader parsed = parse_safetensors_header(header, 4, "PATH");
  std::string in_order;
  for (const auto& tensor : parsed.tensors) {
    in_order += tensor.first;
  }
  EXPECT_EQ(in_order, "acbd");
}

TEST(SafetensorsHeaderFormat, ParsesBackAndIsPadded) {
  SafetensorsHeader header;
  header.tensors = {{"x", {.dtype = at::kHalf, .shape = {2, 3}, .begin = 0, .end = 12}}};
  header.metadata["k"] = "v";
  const std::string text = format_safetensors_header(header, "PATH");
  EXPECT_EQ(text.size() % 8, 0);
  const SafetensorsHeader parsed = parse_safetensors_header(text, 12, "PATH");
  EXPECT_EQ(parsed.tensors.at(0).second.shape, std::vector<int64_t>({2, 3}));
  EXPECT_EQ(parsed.metadata, header.metadata);
}

TEST(SafetensorsHeaderFormat, HeaderAboveTheLimitIsRefused) {
  SafetensorsHeader header;
  header.metadata["k"] = std::string(static_cast<size_t>(kLargestHeader), 'x');
  EXPECT_THROW(format_safetensors_header(header, "PATH"), c10::ValueError);
}

TEST(SafetensorsDtypeNames, GoBothWays) {
  for (const char* name : {"F64", "C64", "F32", "F16", "BF16", "F8_E5M2", "F8_E4M3", "I64", "I32", "I16", "I8", "U64",
                           "U32", "U16", "U8", "BOOL"}) {
    EXPECT_EQ(dtype_name(dtype_of_name(name).value()), name);
  }
  EXPECT_EQ(dtype_of_name("F8_E5M2"), at::kFloat8_e5m2);
  EXPECT_EQ(dtype_of_name("F8_E4M3"), at::kFloat8_e4m3fn);
  EXPECT_EQ(dtype_of_name("U64"), at::kUInt64);
  EXPECT_EQ(dtype_of_name("U32"), at::kUInt32);
  EXPECT_EQ(dtype_of_name("U16"), at::kUInt16);
  EXPECT_FALSE(dtype_of_name("f32").has_value());
  EXPECT_EQ(dtype_of_name("C64"), at::kComplexFloat);
  EXPECT_FALSE(dtype_name(at::kComplexDouble).has_value());
}

}  // namespace
}  // namespace narrowcast::files

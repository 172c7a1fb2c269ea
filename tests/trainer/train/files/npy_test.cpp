#include "trainer/train/files/npy.h"

#include <ATen/ATen.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <string>
#include <tuple>

#include <narrowcast/errors.h>
#include "tests/support/data_files.h"
#include "tests/support/error_message.h"
#include "tests/support/temporary_folder.h"

namespace narrowcast::files {
namespace {

using narrowcast::testing::error_message;
using narrowcast::testing::npy_dictionary;
using narrowcast::testing::npy_file;
using narrowcast::testing::TemporaryFolder;

// The error of reading a file of these bytes, without the path.
std::string npy_error(const std::string& bytes) {
  const TemporaryFolder folder;
  const std::string path = folder.write("f.npy", bytes);
  const std::string message = error_message<CorruptInputError>([&] { map_npy(path); });
  return message.starts_with(path + ": ") ? message.substr(path.size() + 2) : message;
}

// Reads an array from the bytes of its file.
at::Tensor array_of(const MappedTensor& tensor) {
  const std::string_view bytes = tensor.file->bytes().substr(static_cast<size_t>(tensor.begin));
  const at::Tensor array = at::empty(tensor.shape, tensor.dtype);
  EXPECT_EQ(bytes.size(), array.nbytes());
  std::memcpy(array.mutable_data_ptr(), bytes.data(), std::min(bytes.size(), array.nbytes()));
  return array;
}

// numpy.save("f.npy", numpy.array([[1, -2, 3], [4, 5, 6]], dtype=numpy.int16)) with numpy 2.4 wrote these bytes.
TEST(Npy, ReadsWhatNumpyWrote) {
  const TemporaryFolder folder;
  const std::string bytes = std::string("\x93NUMPY\x01\x00v\x00", 10) +
                            "{'descr': '<i2', 'fortran_order': False, 'shape': (2, 3), }" + std::string(58, ' ') +
                            "\n" + std::string("\x01\x00\xfe\xff\x03\x00\x04\x00\x05\x00\x06\x00", 12);
  const MappedTensor tensor = map_npy(folder.write("f.npy", bytes));
  EXPECT_EQ(tensor.begin, 128);
  EXPECT_TRUE(array_of(tensor).equal(at::tensor({1, -2, 3, 4, 5, 6}, at::kShort).view({2, 3})));
}

struct Described {
  std::string name;
  at::ScalarType dtype;
};

class NpyDtypes : public ::testing::TestWithParam<std::tuple<Described, char>> {};

TEST_P(NpyDtypes, AreReadInEveryVersion) {
  const TemporaryFolder folder;
  const auto& [described, version] = GetParam();
  const std::string array(5 * c10::elementSize(described.dtype), '\1');
  const MappedTensor tensor =
      map_npy(folder.write("f.npy", npy_file(npy_dictionary(described.name, "(5,)"), array, version)));
  EXPECT_EQ(tensor.dtype, described.dtype);
  EXPECT_EQ(tensor.shape, std::vector<int64_t>{5});
  EXPECT_EQ(tensor.begin, tensor.file->size() - std::ssize(array));
  EXPECT_EQ(tensor.begin % 64, 0);
}

INSTANTIATE_TEST_SUITE_P(All, NpyDtypes,
                         ::testing::Combine(::testing::Values(Described{"<f8", at::kDouble},
                                                              Described{"<f4", at::kFloat}, Described{"<f2", at::kHalf},
                                                              Described{"<i8", at::kLong}, Described{"<i4", at::kInt},
                                                              Described{"<i2", at::kShort}, Described{"|i1", at::kChar},
                                                              Described{"<u4", at::kUInt32},
                                                              Described{"<u2", at::kUInt16},
                                                              Described{"|u1", at::kByte}, Described{"|b1", at::kBool}),
                                            ::testing::Values('\1', '\2', '\3')));

TEST(Npy, TheHeadersSpellingIsFree) {
  const TemporaryFolder folder;
  for (const std::string dictionary : {"{\"shape\":(1,2),\"descr\":\"<f4\",\"fortran_order\":False}",
                                       " { 'fortran_order' : False , 'shape' : ( 1 , 2 , ) , 'descr' : '<f4' , } "}) {
    EXPECT_EQ(map_npy(folder.write("f.npy", npy_file(dictionary, std::string(8, '\0')))).shape,
              std::vector<int64_t>({1, 2}));
  }
  EXPECT_TRUE(map_npy(folder.write("f.npy", npy_file(npy_dictionary("<f4", "()"), "abcd"))).shape.empty());
  EXPECT_EQ(map_npy(folder.write("f.npy", npy_file(npy_dictionary("<f4", "(3, 0)"), ""))).shape,
            std::vector<int64_t>({3, 0}));
}

TEST(Npy, WhatTensorsAreNotIsNamed) {
  const std::string eight(8, '\0');
  EXPECT_EQ(npy_error(npy_file(npy_dictionary(">f4", "(2,)"), eight)),
            "byte 20: the array has the dtype '>f4', which is big-endian: convert it with "
            "array.astype(array.dtype.newbyteorder('<'))");
  EXPECT_EQ(npy_error(npy_file("{'descr': '<f4', 'fortran_order': True, 'shape': (2,)}", eight)),
            "byte 44: the array is in Fortran order: convert it with numpy.ascontiguousarray");
  EXPECT_EQ(npy_error(npy_file("{'descr': [('x', '<f4')], 'fortran_order': False, 'shape': (2,)}", eight)),
            "byte 20: the array has fields, but only plain numbers are supported");
  for (const std::string dtype : {"<c8", "<u8", "|O", "<U4", "<M8[ns]", "f4", ""}) {
    EXPECT_EQ(npy_error(npy_file(npy_dictionary(dtype, "(1,)"), eight)),
              "byte 20: the array has the dtype '" + dtype + "', which is unknown or not supported");
  }
}

TEST(Npy, WrongHeadersAreRefused) {
  const auto error = [](const std::string& dictionary) { return npy_error(npy_file(dictionary, "abcd")); };
  EXPECT_EQ(error(""), "byte 64: the header must have '{' here");
  EXPECT_EQ(error("{}"), "byte 64: the header lacks descr, fortran_order or shape");
  EXPECT_EQ(error("{'descr': '<f4', 'shape': (1,)}"), "byte 64: the header lacks descr, fortran_order or shape");
  EXPECT_EQ(error("{'descr': '<f4' 'shape': (1,)}"), "byte 26: the header must have ',' or '}' here");
  EXPECT_EQ(error("{'descr' '<f4'}"), "byte 19: the header must have ':' here");
  EXPECT_EQ(error("{'descr': '<f4', 'descr': '<f4'}"),
            "byte 27: the header has the key 'descr', which is unknown or a duplicate");
  EXPECT_EQ(error("{'order': 'C'}"), "byte 11: the header has the key 'order', which is unknown or a duplicate");
  EXPECT_EQ(error("{descr: '<f4'}"), "byte 11: the header must have a string here");
  EXPECT_EQ(error("{'descr"), "byte 11: the header's string has no closing quote");
  EXPECT_EQ(error("{'fortran_order': 0}"), "byte 28: the header's fortran_order must be True or False");
  EXPECT_EQ(error("{'shape': 1}"), "byte 20: the header must have '(' here");
  EXPECT_EQ(error("{'shape': (1)}"), "byte 22: the shape with one dimension lacks its ','");
  EXPECT_EQ(error("{'shape': (-1,)}"), "byte 21: the header must have a size in 0..2^63-1 here");
  EXPECT_EQ(error("{'shape': (9223372036854775808,)}"), "byte 21: the header must have a size in 0..2^63-1 here");
  EXPECT_EQ(error("{'shape': (1 2)}"), "byte 23: the header must have ',' or ')' here");
  EXPECT_EQ(error(npy_dictionary("<f4", "(1,)") + "{"), "byte 67: the header has text after its '}'");
  std::string many;
  for (int i = 0; i < 65; ++i) many += "1,";
  EXPECT_EQ(error("{'shape': (" + many + ")}"), "byte 149: the array has more than 64 dimensions");
}

TEST(Npy, WrongLengthsAreRefused) {
  const auto error = [](const std::string& shape, const std::string& array) {
    return npy_error(npy_file(npy_dictionary("<f4", shape), array));
  };
  EXPECT_EQ(error("(2,)", "abcdefg"), "byte 128: the array's shape and dtype need 8 bytes, but 7 follow the header");
  EXPECT_EQ(error("(2,)", "abcdefghi"), "byte 128: the array's shape and dtype need 8 bytes, but 9 follow the header");
  EXPECT_EQ(error("(0,)", "a"), "byte 128: the array's shape and dtype need 0 bytes, but 1 follow the header");
  EXPECT_EQ(error("(9223372036854775807, 9223372036854775807)", "abcd"), "byte 128: the array's shape overflows");
}

TEST(Npy, WrongBeginningsAreRefused) {
  std::string bytes = npy_file(npy_dictionary("<f4", "(1,)"), "abcd");
  EXPECT_EQ(npy_error("abc"), "byte 0: is not an NPY file, which begins with \\x93NUMPY");
  EXPECT_EQ(npy_error(std::string("PK\3\4") + bytes), "byte 0: is not an NPY file, which begins with \\x93NUMPY");
  for (const char version : {'\0', '\4'}) {
    bytes[6] = version;
    EXPECT_EQ(npy_error(bytes), "byte 6: has the format version " + std::to_string(version) +
                                    ".0, but this program reads 1.0, 2.0 and 3.0");
  }
  bytes[6] = bytes[7] = 1;
  EXPECT_EQ(npy_error(bytes), "byte 6: has the format version 1.1, but this program reads 1.0, 2.0 and 3.0");
  bytes[7] = 0;
  bytes[9] = 1;
  EXPECT_EQ(npy_error(bytes), "byte 8: the header's length 374 reaches past the end of the file at byte 132");
}

// Any cut and any wrong bit in the header give an array of the same size, or one error.
TEST(Npy, NoDamageIsMissedOrWorseThanAnError) {
  const std::string whole = npy_file(npy_dictionary("<f4", "(1, 2)"), "abcdefgh");
  for (size_t length = 0; length < whole.size(); ++length) {
    EXPECT_NE(npy_error(whole.substr(0, length)), "nothing was thrown") << length;
  }
  const TemporaryFolder folder;
  for (size_t at = 0; at < 128; ++at) {
    for (int bit = 0; bit < 8; ++bit) {
      std::string damaged = whole;
      damaged[at] = static_cast<char>(damaged[at] ^ 1 << bit);
      const std::string path = folder.write("f.npy", damaged);
      try {
        EXPECT_EQ(array_of(map_npy(path)).nbytes(), 8U) << at;
      } catch (const CorruptInputError& error) {
        EXPECT_TRUE(std::string(error.what_without_backtrace()).starts_with(path + ": byte ")) << error.what();
      }
    }
  }
}

TEST(Npy, AFileThatIsNotThereIsWrongUse) {
  const TemporaryFolder folder;
  EXPECT_EQ(error_message<c10::ValueError>([&] { map_npy(folder / "none"); }),
            folder / "none" + ": cannot be read: No such file or directory");
}

}  // namespace
}  // namespace narrowcast::files

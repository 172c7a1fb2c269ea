#include "trainer/train/files/safetensors.h"

#include <ATen/ATen.h>
#include <gtest/gtest.h>

#include <nlohmann/json.hpp>

#include <narrowcast/errors.h>
#include "tests/support/error_message.h"
#include "tests/support/file_size_limit.h"
#include "tests/support/temporary_folder.h"
#include "tests/trainer/train/files/file_digest.h"
#include "trainer/base/files/open_file.h"

namespace narrowcast::files {
namespace {

using narrowcast::testing::error_message;
using narrowcast::testing::FileSizeLimit;
using narrowcast::testing::TemporaryFolder;

// The header of a file, as text with its padding.
std::string header_of(const std::string& path) {
  const std::string content = read_file(path);
  uint64_t length = 0;
  std::memcpy(&length, content.data(), sizeof(length));
  return content.substr(8, length);
}

at::Tensor round_trip(const at::Tensor& tensor) {
  const TemporaryFolder folder;
  write_safetensors(folder / "f", {.tensors = {{"t", tensor}}, .metadata = {}});
  return read_safetensors(folder / "f").tensors.at("t");
}

class SafetensorsDtypes : public ::testing::TestWithParam<at::ScalarType> {};

TEST_P(SafetensorsDtypes, EveryValueComesBack) {
  const std::vector<std::vector<int64_t>> shapes = {{3, 5}, {1}, {}, {0}, {2, 0, 7}};
  for (const std::vector<int64_t>& shape : shapes) {
    const at::Tensor tensor = at::randint(0, 100, shape, at::kInt).to(GetParam());
    const at::Tensor read = round_trip(tensor);
    EXPECT_EQ(read.scalar_type(), GetParam());
    EXPECT_EQ(read.sizes(), tensor.sizes());
    EXPECT_TRUE(read.to(at::kDouble).equal(tensor.to(at::kDouble)));
  }
}

INSTANTIATE_TEST_SUITE_P(All, SafetensorsDtypes,
                         ::testing::Values(at::kDouble, at::kFloat, at::kHalf, at::kBFloat16, at::kFloat8_e5m2,
                                           at::kFloat8_e4m3fn, at::kLong, at::kInt, at::kShort, at::kChar, at::kUInt64,
                                           at::kUInt32, at::kUInt16, at::kByte, at::kBool));

TEST(Safetensors, ComplexNumbersComeBack) {
  const at::Tensor parts = at::arange(12, at::kFloat).view({2, 3, 2});
  const at::Tensor tensor = at::view_as_complex(parts);
  EXPECT_TRUE(round_trip(tensor).equal(tensor));
  EXPECT_TRUE(round_trip(tensor.t()).equal(tensor.t()));
  EXPECT_TRUE(round_trip(tensor.conj()).equal(tensor.conj().resolve_conj())) << "a view that negates while it is read";
  EXPECT_EQ(round_trip(at::zeros({2, 0}, at::kComplexFloat)).sizes(), (std::vector<int64_t>{2, 0}));
}

TEST(Safetensors, SpecialNumbersKeepTheirBits) {
  const at::Tensor bits = at::tensor({0x7fc00001, 0x7f800000, int(0xff800000), int(0x80000000), 1}, at::kInt);
  EXPECT_TRUE(round_trip(bits.view(at::kFloat)).view(at::kInt).equal(bits));
}

TEST(Safetensors, StridedTensorsAreWrittenInOrder) {
  const at::Tensor base = at::arange(24, at::kFloat).view({4, 6});
  EXPECT_TRUE(round_trip(base.t()).equal(base.t()));
  EXPECT_TRUE(round_trip(base.slice(1, 1, 6, 2)).equal(base.slice(1, 1, 6, 2)));
  EXPECT_TRUE(round_trip(at::ones({1}).expand({3})).equal(at::ones({3})));
}

TEST(Safetensors, ParametersAreWrittenWithoutTheirGradient) {
  const at::Tensor read = round_trip(at::ones({2}).requires_grad_());
  EXPECT_FALSE(read.requires_grad());
}

TEST(Safetensors, FileIsAsTheFormatSays) {
  const TemporaryFolder folder;
  write_safetensors(folder / "f", {.tensors = {{"b", at::tensor({1, 2}, at::kByte)}, {"a", at::ones({1})}},
                                   .metadata = {{"key", "value"}}});
  const std::string header = R"({"__metadata__":{"key":"value"},"a":{"data_offsets":[0,4],"dtype":"F32","shape":[1]},)"
                             R"("b":{"data_offsets":[4,6],"dtype":"U8","shape":[2]}})";
  const std::string padded = header + std::string((8 - header.size() % 8) % 8, ' ');
  const std::string length = {static_cast<char>(padded.size()), 0, 0, 0, 0, 0, 0, 0};
  ASSERT_LT(padded.size(), 256);
  EXPECT_EQ(read_file(folder / "f"), length + padded + std::string("\x00\x00\x80\x3f\x01\x02", 6));
}

TEST(Safetensors, WideDtypesComeFirstAndEveryTensorIsAligned) {
  const TemporaryFolder folder;
  std::map<std::string, at::Tensor> tensors;
  for (const auto dtype : {at::kBool, at::kByte, at::kHalf, at::kDouble, at::kFloat, at::kShort, at::kLong}) {
    tensors[c10::str("t", tensors.size())] = at::ones({3}, dtype);
  }
  write_safetensors(folder / "f", {.tensors = tensors, .metadata = {}});
  const std::string header = header_of(folder / "f");
  EXPECT_EQ(header.size() % 8, 0);
  int64_t width_before = 8;
  std::map<int64_t, int64_t> width_at;  // by offset
  const auto entries = nlohmann::json::parse(header);
  for (const auto& [name, entry] : entries.items()) {
    width_at[entry["data_offsets"][0]] = static_cast<int64_t>(tensors[name].element_size());
  }
  for (const auto& [offset, width] : width_at) {
    EXPECT_EQ(offset % width, 0);
    EXPECT_LE(width, width_before);
    width_before = width;
  }
}

TEST(Safetensors, SameContentGivesTheSameBytes) {
  const TemporaryFolder folder;
  const Safetensors content = {.tensors = {{"x", at::ones({3})}, {"y", at::ones({2})}}, .metadata = {{"k", "v"}}};
  write_safetensors(folder / "f", content);
  write_safetensors(folder / "g", content);
  EXPECT_EQ(read_file(folder / "f"), read_file(folder / "g"));
}

TEST(Safetensors, NamesAndMetadataOfAnyTextComeBack) {
  const TemporaryFolder folder;
  using std::string_literals::operator""s;
  const std::string odd = "quote \" back\\slash \n zero\0 \xc3\xa9 \xf0\x9f\x98\x80"s;
  const Safetensors content = {.tensors = {{odd, at::ones({1})}, {"", at::zeros({1})}}, .metadata = {{odd, odd}}};
  write_safetensors(folder / "f", content);
  const Safetensors read = read_safetensors(folder / "f");
  EXPECT_EQ(read.metadata, content.metadata);
  EXPECT_TRUE(read.tensors.contains(odd) && read.tensors.contains(""));
}

TEST(Safetensors, EmptyFileOfTensorsIsAFile) {
  const TemporaryFolder folder;
  write_safetensors(folder / "f", {});
  const Safetensors read = read_safetensors(folder / "f");
  EXPECT_TRUE(read.tensors.empty());
  EXPECT_TRUE(read.metadata.empty());
}

TEST(Safetensors, ReadTensorsOwnTheirMemory) {
  const TemporaryFolder folder;
  write_safetensors(folder / "f", {.tensors = {{"x", at::ones({3})}}, .metadata = {}});
  const at::Tensor read = read_safetensors(folder / "f").tensors.at("x");
  read.fill_(5);
  EXPECT_TRUE(read_safetensors(folder / "f").tensors.at("x").equal(at::ones({3})));
}

std::string write_error(const std::string& path, const Safetensors& content) {
  return error_message<c10::ValueError>([&] { write_safetensors(path, content); });
}

TEST(SafetensorsWrite, WrongTensorsAreNamedAndNothingIsWritten) {
  const TemporaryFolder folder;
  const std::string path = folder / "f";
  const auto error = [&](const std::string& name, const at::Tensor& tensor) {
    return write_error(path, {.tensors = {{name, tensor}}, .metadata = {}});
  };
  EXPECT_EQ(error("x", at::Tensor()), path + ": tensor 'x' is undefined");
  EXPECT_EQ(error("x", at::ones({2}, at::kComplexDouble)),
            path + ": tensor 'x' has the dtype ComplexDouble, which safetensors files cannot hold here");
  EXPECT_EQ(error("x", at::ones({2}).to_sparse()),
            path + ": tensor 'x' has the layout Sparse, but only strided tensors can be written");
  EXPECT_EQ(error("__metadata__", at::ones({2})), path + ": a tensor cannot have the name __metadata__");
  EXPECT_NE(error("\xff", at::ones({2})).find("is not UTF-8"), std::string::npos);
  EXPECT_NE(write_error(path, {.tensors = {}, .metadata = {{"k", "\xff"}}}).find("is not UTF-8"), std::string::npos);
  EXPECT_EQ(folder.entries(), 0);
}

TEST(SafetensorsWrite, FullDiskIsAnErrorAndLeavesTheOldFile) {
  const TemporaryFolder folder;
  const std::string path = folder / "f";
  write_safetensors(path, {.tensors = {{"x", at::ones({1})}}, .metadata = {}});
  const std::string before = read_file(path);
  const FileSizeLimit limit(4096);
  EXPECT_EQ(error_message<OutputError>([&] {
              write_safetensors(path, {.tensors = {{"x", at::ones({4096})}}, .metadata = {}});
            }),
            path + ": cannot be written: File too large");
  EXPECT_EQ(read_file(path), before);
  EXPECT_EQ(folder.entries(), 1);
}

TEST(SafetensorsWrite, MissingFolderIsNamed) {
  EXPECT_EQ(write_error("/nonexistent/f", {}), "/nonexistent/f: cannot be written: No such file or directory");
}

TEST(SafetensorsRead, MissingFileIsWrongUse) {
  EXPECT_EQ(error_message<c10::ValueError>([] { read_safetensors("/nonexistent/f"); }),
            "/nonexistent/f: cannot be read: No such file or directory");
}

TEST(SafetensorsOfASum, AreReadIfTheyAreTheOnes) {
  const TemporaryFolder folder;
  const std::string path = folder / "f";
  const FileDigest digest = write_safetensors(
      path,
      {.tensors = {{"a", at::ones({3})}, {"b", at::zeros({0})}, {"c", at::ones({2}, at::kBool)}}, .metadata = {}});
  EXPECT_EQ(digest, testing::digest_of_file(path));
  const Safetensors read = read_safetensors(path, digest);
  EXPECT_EQ(read.tensors.size(), 3u);
  EXPECT_TRUE(read.tensors.at("a").equal(at::ones({3})));
  EXPECT_EQ(
      error_message<CorruptInputError>([&] {
        read_safetensors(path, {digest.bytes + 1, digest.sha256});
      }),
      path + ": has " + std::to_string(digest.bytes) + " bytes, but must have " + std::to_string(digest.bytes + 1));
  // Every byte counts: those of the header, its padding and the data. The wrong checksum is reported before other
  // errors.
  const std::string whole = read_file(path);
  for (size_t i = 0; i < whole.size(); ++i) {
    std::string changed = whole;
    changed[i] = static_cast<char>(changed[i] ^ 4);
    folder.write("f", changed);
    EXPECT_EQ(error_message<CorruptInputError>([&] { read_safetensors(path, digest); }),
              path + ": has the SHA-256 " + testing::digest_of_file(path).sha256 + ", but must have " + digest.sha256)
        << i;
  }
}

TEST(MapSafetensors, FindsEveryTensorWhereItLies) {
  const TemporaryFolder folder;
  const std::map<std::string, at::Tensor> tensors = {
      {"b", at::arange(6, at::kByte).view({3, 2})}, {"a", at::rand({2, 1, 2})}, {"none", at::empty({0, 4})}};
  write_safetensors(folder / "f", {.tensors = tensors, .metadata = {{"key", "value"}}});
  const std::map<std::string, MappedTensor> mapped = map_safetensors(folder / "f");
  ASSERT_EQ(mapped.size(), tensors.size());
  for (const auto& [name, tensor] : tensors) {
    const MappedTensor& found = mapped.at(name);
    EXPECT_EQ(found.dtype, tensor.scalar_type());
    EXPECT_EQ(at::IntArrayRef(found.shape), tensor.sizes());
    EXPECT_EQ(found.path(), folder / "f");
    EXPECT_EQ(found.file->bytes().substr(static_cast<size_t>(found.begin), tensor.nbytes()),
              std::string_view(static_cast<const char*>(tensor.const_data_ptr()), tensor.nbytes()));
  }
}

// Mapping makes the same checks as reading.
TEST(MapSafetensors, NoCutIsMissed) {
  const TemporaryFolder folder;
  write_safetensors(folder / "f", {.tensors = {{"t", at::ones({2})}}, .metadata = {}});
  const std::string whole = read_file(folder / "f");
  for (size_t length = 0; length < whole.size(); ++length) {
    folder.write("f", whole.substr(0, length));
    const std::string mapped = error_message<CorruptInputError>([&] { map_safetensors(folder / "f"); });
    EXPECT_EQ(mapped, error_message<CorruptInputError>([&] { read_safetensors(folder / "f"); }));
    EXPECT_TRUE(mapped.starts_with(folder / "f" + ": ")) << mapped;
  }
}

}  // namespace
}  // namespace narrowcast::files

#include "trainer/train/files/weight_files.h"

#include <ATen/ATen.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <filesystem>
#include <map>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include <narrowcast/errors.h>
#include "tests/support/error_message.h"
#include "tests/support/temporary_folder.h"
#include "trainer/base/files/open_file.h"

namespace narrowcast::files {
namespace {

using narrowcast::testing::error_message;
using narrowcast::testing::TemporaryFolder;
using nlohmann::json;
using ::testing::ElementsAre;

// Two parts with an index, as transformers' save_pretrained writes them.
class ShardedWeightsTest : public ::testing::Test {
 protected:
  void SetUp() override {
    write_part(first, {{"a", at::full({2}, 1.0)}, {"c", at::full({3}, 3.0)}});
    write_part(second, {{"b", at::full({4}, 2.0)}});
    write_index({{"a", "model-00001-of-00002.safetensors"},
                 {"b", "model-00002-of-00002.safetensors"},
                 {"c", "model-00001-of-00002.safetensors"}});
  }

  static void write_part(const std::string& path, const std::map<std::string, at::Tensor>& tensors) {
    write_safetensors(path, {.tensors = tensors, .metadata = {{"format", "pt"}}});
  }
  void write_index(const json& weight_map) const {
    folder.write("model.safetensors.index.json",
                 json{{"metadata", {{"total_size", 36}}}, {"weight_map", weight_map}}.dump(2));
  }

  std::string corruption() const {
    const std::string message = error_message<CorruptInputError>([&] { read_weights("init_from", index); });
    return message.starts_with(folder / "") ? message.substr((folder / "").size()) : message;
  }

  static std::string wrong_use(const std::string& path) {
    return error_message<c10::ValueError>([&] { read_weights("init_from", path); });
  }

  const TemporaryFolder folder;
  const std::string index = folder / "model.safetensors.index.json";
  const std::string first = folder / "model-00001-of-00002.safetensors";
  const std::string second = folder / "model-00002-of-00002.safetensors";
};

TEST_F(ShardedWeightsTest, AreThoseOfAllParts) {
  for (const std::string& path : {index, folder.path().string(), folder / ""}) {
    const Weights weights = read_weights("init_from", path);
    EXPECT_EQ(weights.content.tensors.size(), 3U);
    EXPECT_TRUE(weights.content.tensors.at("a").equal(at::full({2}, 1.0)));
    EXPECT_TRUE(weights.content.tensors.at("b").equal(at::full({4}, 2.0)));
    EXPECT_TRUE(weights.content.tensors.at("c").equal(at::full({3}, 3.0)));
    EXPECT_TRUE(weights.content.metadata.empty());
    EXPECT_THAT(weights.files, ElementsAre(index, first, second));
  }
}

TEST_F(ShardedWeightsTest, MissingAndForeignPartsAreNamed) {
  write_part(first, {{"a", at::ones({2})}});
  EXPECT_EQ(corruption(), "model-00001-of-00002.safetensors: lacks tensor 'c', which " + index + " assigns to it");
  write_part(first, {{"a", at::ones({2})}, {"b", at::ones({2})}, {"c", at::ones({2})}});
  EXPECT_EQ(corruption(), "model-00001-of-00002.safetensors: tensor 'b' is not assigned to it by " + index);
  SetUp();
  std::filesystem::remove(second);
  EXPECT_EQ(wrong_use(index), second + ": cannot be read: No such file or directory");
}

TEST_F(ShardedWeightsTest, AnIndexThatIsNoneIsNamed) {
  for (const char* const text : {"[]", "{}", R"({"weight_map": []})", R"({"weight_map": {}})"}) {
    folder.write("model.safetensors.index.json", text);
    EXPECT_EQ(corruption(), "model.safetensors.index.json: lacks the object 'weight_map'") << text;
  }
  folder.write("model.safetensors.index.json", "{");
  EXPECT_EQ(corruption(), "model.safetensors.index.json: is not valid JSON at byte 2");
  write_index({{"a", 1}});
  EXPECT_EQ(corruption(), "model.safetensors.index.json: the part of tensor 'a' is not a string");
  for (const std::string name : {"../x.safetensors", "/x.safetensors", "x.bin", ""}) {
    write_index({{"a", name}});
    EXPECT_EQ(corruption(), "model.safetensors.index.json: tensor 'a' is in '" + name +
                                "', which is not the name of a file *.safetensors");
  }
}

TEST_F(ShardedWeightsTest, OnePartIsNotTaken) {
  EXPECT_EQ(wrong_use(first),
            "init_from: " + first + " is one of 2 parts; give the folder or the index, *.safetensors.index.json");
}

TEST(Weights, AreAFileOrThatOfAFolder) {
  const TemporaryFolder folder;
  const std::string path = folder / "model.safetensors";
  write_safetensors(path, {.tensors = {{"a", at::ones({2})}}, .metadata = {{"format", "pt"}}});
  for (const std::string& given : {path, folder.path().string()}) {
    const Weights weights = read_weights("init_from", given);
    EXPECT_TRUE(weights.content.tensors.at("a").equal(at::ones({2})));
    EXPECT_EQ(weights.content.metadata.at("format"), "pt");
    EXPECT_THAT(weights.files, ElementsAre(path));
  }
  const std::string alone = folder / "model-00001-of-00001.safetensors";
  std::filesystem::rename(path, alone);
  EXPECT_EQ(read_weights("init_from", alone).content.tensors.size(), 1U);
}

TEST(Weights, WhatIsNoPlaceForThemIsNamed) {
  const TemporaryFolder folder;
  const std::string path = folder.path();
  const auto message = [](const std::string& given) {
    return error_message<c10::ValueError>([&] { read_weights("init_from", given); });
  };
  EXPECT_EQ(message("m.pt"),
            "init_from: m.pt must be a file of weights (*.safetensors), an index of such files "
            "(*.safetensors.index.json) or a folder");
  EXPECT_EQ(message(path),
            "init_from: the folder " + path + " has neither model.safetensors nor model.safetensors.index.json");
  folder.write("model.safetensors", "");
  folder.write("model.safetensors.index.json", "");
  EXPECT_EQ(message(path), "init_from: the folder " + path +
                               " has both model.safetensors and model.safetensors.index.json; give one of the files");
}

// 3 MiB and one byte, which are read in parts.
TEST(HashOfFiles, IsThatOfEveryByte) {
  const TemporaryFolder folder;
  std::string content((size_t{3} << 20) + 1, 'a');
  const uint64_t hash = hash_of_files({folder.write("a", content)});
  EXPECT_EQ(hash_of_files({folder.write("b", content)}), hash);
  for (const size_t position : {size_t{0}, size_t{1} << 20, content.size() - 1}) {
    std::string other = content;
    other[position] = 'b';
    EXPECT_NE(hash_of_files({folder.write("b", other)}), hash) << position;
  }
  EXPECT_NE(hash_of_files({folder.write("b", content + "a")}), hash);
  EXPECT_THROW(hash_of_files({folder / "none"}), c10::ValueError);
}

TEST(HashOfFiles, IsThatOfAllInTheirOrder) {
  const TemporaryFolder folder;
  const std::string a = folder.write("a", "one");
  const std::string b = folder.write("b", "two");
  EXPECT_NE(hash_of_files({a, b}), hash_of_files({a}));
  EXPECT_NE(hash_of_files({a, b}), hash_of_files({b, a}));
}

}  // namespace
}  // namespace narrowcast::files

#include "models/imported/package_file.h"

#include <ATen/ATen.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <torch/version.h>

#include <filesystem>
#include <functional>
#include <ostream>
#include <string>

#include <narrowcast/errors.h>
#include "tests/models/imported/script_modules.h"
#include "tests/models/imported/small_package.h"
#include "tests/support/error_message.h"
#include "tests/support/temporary_folder.h"
#include "trainer/base/files/open_file.h"

namespace narrowcast::models {
namespace {

using ::testing::EndsWith;
using testing::error_message;
using ::testing::HasSubstr;
using testing::Records;
using testing::SmallPackage;
using ::testing::StartsWith;
using testing::TemporaryFolder;
using testing::write_archive;

constexpr const char* kTrainFolder = "data/aotinductor/train/";
constexpr const char* kWeights = "narrowcast/weights.safetensors";
constexpr const char* kHowToWriteOne =
    "in Python, narrowcast_export.export(net, example, loss, \"net.pt2\") writes one";

TEST(PackageFile, HasManifestWeightsAndCode) {
  const TemporaryFolder folder;
  SmallPackage small;
  small.weights["steps"].fill_(7);
  Records records = small.records();
  const std::string operators = R"({"nodes": []})";
  records[std::string(kTrainFolder) + "small.wrapper.json"] = operators;
  const Package package = read_package(write_archive(folder / "net.pt2", records));
  EXPECT_EQ(package.manifest.module, "SmallNet");
  ASSERT_EQ(package.weights.size(), small.weights.size());
  for (const auto& [name, tensor] : small.weights) {
    const at::Tensor& read = package.weights.at(name);
    EXPECT_TRUE(read.equal(tensor) && read.scalar_type() == tensor.scalar_type() && read.is_contiguous()) << name;
  }
  EXPECT_EQ(package.train.library, records[std::string(kTrainFolder) + "small.wrapper.so"]);
  EXPECT_EQ(package.train.operators, operators);
  EXPECT_THAT(package.evaluate.library, HasSubstr("small_graph:evaluate"));
  EXPECT_EQ(package.evaluate.operators, "");
}

TEST(PackageFile, TheNameOfTheFileDoesNotMatter) {
  const TemporaryFolder folder;
  const std::string path = SmallPackage().write(folder / "net.pt2");
  std::filesystem::rename(path, folder / "renamed");
  EXPECT_EQ(read_package(folder / "renamed").manifest.module, "SmallNet");
}

TEST(PackageFile, AFileThatCannotBeReadIsAnError) {
  const TemporaryFolder folder;
  EXPECT_EQ(error_message<c10::ValueError>([&] { read_package(folder / "net.pt2"); }),
            folder / "net.pt2" + ": cannot be read: No such file or directory");
  EXPECT_EQ(error_message<c10::ValueError>([&] { read_package(folder.path()); }),
            folder.path().native() + ": is a folder, but must be a file");
}

TEST(PackageFile, FilesThatAreNotArchivesAreErrors) {
  const TemporaryFolder folder;
  const std::string whole = files::read_file(SmallPackage().write(folder / "whole.pt2"));
  for (const std::string& content : {std::string(), std::string("import torch\n"), whole.substr(0, whole.size() / 2),
                                     whole.substr(0, whole.size() - 1), whole.substr(1000)}) {
    const std::string path = folder.write("net.pt2", content);
    EXPECT_EQ(error_message<c10::ValueError>([&] { read_package(path); }),
              path + ": is not a model package, or is damaged: " + kHowToWriteOne)
        << content.size() << " bytes";
  }
}

TEST(PackageFile, OtherArchivesAreErrors) {
  const TemporaryFolder folder;
  const auto error_with = [&](const Records& records) {
    const std::string path = write_archive(folder / "net.pt2", records);
    const std::string message = error_message<c10::ValueError>([&] { read_package(path); });
    EXPECT_THAT(message, StartsWith(path + ": "));
    EXPECT_THAT(message, EndsWith(std::string(": ") + kHowToWriteOne));
    return message.substr(path.size() + 2, message.rfind(": in Python") - path.size() - 2);
  };
  EXPECT_EQ(error_with({{"notes.txt", "content"}}), "is not a model package");
  EXPECT_EQ(error_with({{"archive_format", "pt2"}, {"models/model.json", "{}"}}),
            "is not a model package, but another file of torch.export");
  const std::string metadata = std::string(kTrainFolder) + "small.wrapper_metadata.json";
  EXPECT_EQ(error_with({{metadata, R"({"AOTI_DEVICE_KEY": "cpu"})"}}),
            "is a package of AOTInductor without a training step");
  EXPECT_EQ(error_with({{metadata, R"({"narrowcast": {"format": 1}})"}}),
            "is a package of AOTInductor without a training step");
}

TEST(PackageFile, ATorchScriptModuleIsAnError) {
  const TemporaryFolder folder;
  testing::make_net().save(folder / "net.pt2");
  EXPECT_EQ(error_message<c10::ValueError>([&] { read_package(folder / "net.pt2"); }),
            folder / "net.pt2" + ": is not a model package: " + kHowToWriteOne);
}

TEST(PackageFile, PackagesThatCannotRunHereAreErrors) {
  const TemporaryFolder folder;
  SmallPackage package;
  package.manifest["torch"] = "2.100.0";
  const std::string path = package.write(folder / "net.pt2");
  EXPECT_EQ(error_message<c10::ValueError>([&] { read_package(path); }),
            path + ": is compiled with torch 2.100.0, which is newer than this LibTorch, " TORCH_VERSION
                   "; export it with that version");
}

struct DamagedPackage {
  const char* name;
  std::function<void(SmallPackage& package)> change_package;
  std::function<void(Records& records)> change_records;
  const char* message;  // the error's after "PATH: "
};

void PrintTo(const DamagedPackage& damaged, std::ostream* out) { *out << damaged.name; }

class DamagedPackageTest : public ::testing::TestWithParam<DamagedPackage> {};

TEST_P(DamagedPackageTest, IsAnErrorThatNamesTheFileAndTheFault) {
  const TemporaryFolder folder;
  SmallPackage package;
  if (GetParam().change_package) GetParam().change_package(package);
  Records records = package.records();
  if (GetParam().change_records) GetParam().change_records(records);
  const std::string path = write_archive(folder / "net.pt2", records);
  EXPECT_EQ(error_message<CorruptInputError>([&] { read_package(path); }), path + ": " + GetParam().message);
}

INSTANTIATE_TEST_SUITE_P(
    Parts, DamagedPackageTest,
    ::testing::Values(
        DamagedPackage{"without weights",
                       {},
                       [](Records& records) { records.erase(kWeights); },
                       "has no record 'narrowcast/weights.safetensors'"},
        DamagedPackage{"without the training step",
                       {},
                       [](Records& records) { records.erase(std::string(kTrainFolder) + "small.wrapper.so"); },
                       "has no library in data/aotinductor/train/"},
        DamagedPackage{"without the evaluation",
                       {},
                       [](Records& records) { records.erase("data/aotinductor/evaluate/small.wrapper.so"); },
                       "has no library in data/aotinductor/evaluate/"},
        DamagedPackage{"an invalid manifest",
                       [](SmallPackage& package) { package.manifest.erase("module"); },
                       {},
                       "its manifest is invalid: 'module' is missing"},
        DamagedPackage{
            "invalid metadata",
            {},
            [](Records& records) { records[std::string(kTrainFolder) + "small.wrapper_metadata.json"] = "{"; },
            "data/aotinductor/train/small.wrapper_metadata.json: is not valid JSON at byte 2"}));

INSTANTIATE_TEST_SUITE_P(
    Weights, DamagedPackageTest,
    ::testing::Values(
        DamagedPackage{"cut weights",
                       {},
                       [](Records& records) { records[kWeights].pop_back(); },
                       "has 1075 bytes of weights, but its manifest says 1076"},
        DamagedPackage{"no weights at all", [](SmallPackage& package) { package.manifest["weights"]["bytes"] = 4; },
                       [](Records& records) { records[kWeights] = std::string(4, '\1'); },
                       "narrowcast/weights.safetensors: is too short: 4 bytes"},
        DamagedPackage{
            "a weight of another shape",
            [](SmallPackage& package) {
              package.weights["layers.0.weight"].resize_({4, 3});
            },
            {},
            "its weights have the tensor 'layers.0.weight' of Float [4, 3], but its manifest says Float [3, 4]"},
        DamagedPackage{"a weight of another dtype",
                       [](SmallPackage& package) { package.weights["steps"] = at::zeros({}, at::kInt); },
                       {},
                       "its weights have the tensor 'steps' of Int [], but its manifest says Long []"},
        DamagedPackage{"a missing weight",
                       [](SmallPackage& package) { package.weights.erase("offset"); },
                       {},
                       "its weights lack the tensor 'offset'"},
        DamagedPackage{"an additional weight",
                       [](SmallPackage& package) { package.weights["other"] = at::zeros({2}); },
                       {},
                       "has 14 weights, but its manifest lists 13"}));

// The place of a record's data in a file.
size_t place_of(const std::string& file, const std::string& bytes) {
  const size_t place = file.rfind(bytes);  // The metadata of both graphs are the same.
  EXPECT_NE(place, std::string::npos);
  return place;
}

// LibTorch's reader ignores the checksums of an archive's records.
TEST(PackageFile, EveryChangedRecordIsAnError) {
  const TemporaryFolder folder;
  SmallPackage small;
  Records records = small.records();
  records[std::string(kTrainFolder) + "small.wrapper.json"] = R"({"nodes": []})";
  const std::string whole = files::read_file(write_archive(folder / "whole.pt2", records));
  for (const std::string& name :
       {std::string(kWeights), std::string(kTrainFolder) + "small.wrapper.so",
        std::string(kTrainFolder) + "small.wrapper.json", std::string("data/aotinductor/evaluate/small.wrapper.so"),
        std::string(kTrainFolder) + "small.wrapper_metadata.json"}) {
    const std::string& bytes = records[name];
    for (const size_t byte : {size_t{0}, bytes.size() / 2, bytes.size() - 1}) {
      std::string changed = whole;
      changed[place_of(whole, bytes) + byte] ^= 1;
      const std::string path = folder.write("net.pt2", changed);
      EXPECT_EQ(error_message<CorruptInputError>([&] { read_package(path); }),
                path + ": its record '" + name + "' is damaged: its checksum is wrong")
          << "byte " << byte;
    }
  }
}

// Any change of an archive's directory is an error of the file, and none reads beside it.
TEST(PackageFile, EveryChangedDirectoryIsAnErrorOrHarmless) {
  const TemporaryFolder folder;
  const std::string whole = files::read_file(write_archive(folder / "whole.pt2", SmallPackage().records("library")));
  const size_t directory = whole.find("PK\1\2");
  ASSERT_NE(directory, std::string::npos);
  for (size_t byte = directory; byte < whole.size(); ++byte) {
    std::string changed = whole;
    changed[byte] = static_cast<char>(changed[byte] ^ (byte % 3 == 0 ? 0xff : 1 << byte % 8));
    const std::string path = folder.write("net.pt2", changed);
    std::string message = path;
    try {
      read_package(path);
    } catch (const c10::ValueError& error) {
      message = error.what_without_backtrace();
    } catch (const CorruptInputError& error) {
      message = error.what_without_backtrace();
    }
    EXPECT_THAT(message, StartsWith(path)) << "byte " << byte;
  }
}

}  // namespace
}  // namespace narrowcast::models

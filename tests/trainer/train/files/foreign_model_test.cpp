#include "trainer/train/files/foreign_model.h"

#include <ATen/ATen.h>
#include <caffe2/serialize/inline_container.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <map>
#include <string>

#include <narrowcast/errors.h>
#include "tests/support/error_message.h"
#include "tests/support/temporary_folder.h"
#include "tests/trainer/train/files/script_fixtures.h"
#include "trainer/train/files/safetensors.h"
#include "trainer/train/files/script_file.h"

namespace narrowcast::files {
namespace {

using ::testing::AllOf;
using testing::error_message;
using ::testing::HasSubstr;
using ::testing::Not;
using ::testing::StartsWith;
using testing::TemporaryFolder;

constexpr const char* kScriptAdvice = "torch.jit.script(net).save(\"net.pt\") writes a TorchScript module";

// The first bytes of files that Python's torch.save pickles; tests/python reads whole files.
const std::string kPickledState =
    "\x80\x02"
    "ccollections\nOrderedDict\nq";
const std::string kPickledModule =
    "\x80\x02"
    "ctorch.nn.modules.container\nSequential\nX\x0b_parametersX\x08_modules";

class ForeignModelTest : public ::testing::Test {
 protected:
  // A zip archive by LibTorch's writer, with these entries.
  std::string archive(const std::map<std::string, std::string>& entries) const {
    caffe2::serialize::PyTorchStreamWriter writer(path);
    for (const auto& [name, content] : entries) writer.writeRecord(name, content.data(), content.size());
    writer.writeEndOfFile();
    return describe_foreign_model(path);
  }

  std::string file(const std::string& content) const { return describe_foreign_model(folder.write("net.pt", content)); }

  const TemporaryFolder folder;
  const std::string path = folder / "net.pt";
};

TEST_F(ForeignModelTest, TorchScriptIsNotForeign) {
  save_script(path, {.module = testing::table_module(at::eye(2))});
  EXPECT_EQ(describe_foreign_model(path), "");
  EXPECT_EQ(file("a text"), "");
  EXPECT_EQ(file(""), "");
}

TEST_F(ForeignModelTest, WhatTorchSaveWritesIsToldApart) {
  const auto is_state = AllOf(StartsWith("it holds pickled data without code, as torch.save(net.state_dict(), ...)"),
                              HasSubstr(kScriptAdvice), HasSubstr("safetensors.torch.save_file(net.state_dict()"));
  const auto is_module = AllOf(StartsWith("it is a pickled module, as torch.save(net, ...) writes it"),
                               HasSubstr(kScriptAdvice), Not(HasSubstr("save_file")));
  EXPECT_THAT(archive({{"data.pkl", kPickledState}, {"data/0", "1234"}}), is_state);
  EXPECT_THAT(archive({{"data.pkl", kPickledModule}}), is_module);
  EXPECT_THAT(file(kPickledState), is_state) << "before version 1.6, or of pickle.dump";
  EXPECT_THAT(file(kPickledModule), is_module);
}

TEST_F(ForeignModelTest, AProgramOfTorchExportIsNamed) {
  const auto is_exported = AllOf(StartsWith("it is a program of torch.export.save()"), HasSubstr(kScriptAdvice));
  EXPECT_THAT(archive({{"archive_format", "pt2"}, {"models/model.json", "{}"}}), is_exported);
  EXPECT_THAT(archive({{"serialized_exported_program.json", "{}"}}), is_exported);
}

TEST_F(ForeignModelTest, OtherFilesAreNamed) {
  EXPECT_THAT(archive({{"weights.txt", "1"}}), StartsWith("it is a zip archive of another program"));
  EXPECT_THAT(file("PK\x03\x04"
                   "cut"),
              StartsWith("it is a zip archive of another program, or is damaged"));
  write_safetensors(path, {.tensors = {{"a", at::ones({2})}}, .metadata = {}});
  EXPECT_THAT(describe_foreign_model(path), AllOf(StartsWith("it holds tensors without code (safetensors)"),
                                                  HasSubstr("--init_from"), HasSubstr(kScriptAdvice)));
}

TEST_F(ForeignModelTest, TheReaderSaysIt) {
  archive({{"data.pkl", kPickledModule}});
  EXPECT_THAT(error_message<CorruptInputError>([&] { load_script(path); }),
              StartsWith(path + ": is not a TorchScript module: it is a pickled module"));
}

}  // namespace
}  // namespace narrowcast::files

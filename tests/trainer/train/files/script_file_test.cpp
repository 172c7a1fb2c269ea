#include "trainer/train/files/script_file.h"

#include <ATen/ATen.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <optional>
#include <string>

#include <narrowcast/errors.h>
#include "tests/support/error_message.h"
#include "tests/support/temporary_folder.h"
#include "tests/trainer/train/files/script_fixtures.h"

namespace narrowcast::files {
namespace {

using ::testing::AllOf;
using ::testing::ElementsAre;
using testing::error_message;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using ::testing::Not;
using testing::table_module;
using testing::TemporaryFolder;

TEST(ScriptFile, KeepsModuleAndExtraFiles) {
  const TemporaryFolder folder;
  const std::string path = folder / "m.pt";
  save_script(path, {.module = table_module(at::eye(2)),
                     .extra_files = {{"vocabulary.json", R"(["a", "b"])"}, {"notes/origin.txt", "here"}}});
  const SavedScript saved = load_script(path);
  EXPECT_TRUE(saved.module.attr("table").toTensor().equal(at::eye(2)));
  EXPECT_EQ(saved.extra_files.at("notes/origin.txt"), "here");
  EXPECT_EQ(saved.extra_files.size(), 2U);
  EXPECT_THAT(script_vocabulary(path, saved), ElementsAre("a", "b"));
}

TEST(ScriptFile, TakesAVocabulary) {
  SavedScript saved = {.module = table_module(at::eye(2)), .extra_files = {{"notes", "here"}}};
  put_vocabulary(saved, {});
  EXPECT_EQ(saved.extra_files.size(), 1U);
  put_vocabulary(saved, {"b", "\""});
  EXPECT_THAT(script_vocabulary("m.pt", saved), ElementsAre("b", "\""));
}

TEST(ScriptFile, ThereMayBeNoVocabulary) {
  EXPECT_THAT(script_vocabulary("m.pt", {.module = table_module(at::eye(2))}), IsEmpty());
}

TEST(ScriptFile, NamesTheFileThatIsNone) {
  const TemporaryFolder folder;
  EXPECT_THAT(error_message<c10::ValueError>([&] { load_script(folder / "none.pt"); }), HasSubstr("none.pt"));
  const std::string path = folder.write("text.pt", "no archive");
  EXPECT_THAT(error_message<CorruptInputError>([&] { load_script(path); }),
              AllOf(HasSubstr("text.pt: is not a TorchScript module"), Not(HasSubstr("\n"))));
  const SavedScript bad = {.module = table_module(at::eye(2)), .extra_files = {{"vocabulary.json", "[1, 2]"}}};
  EXPECT_THAT(error_message<CorruptInputError>([&] { script_vocabulary("m.pt", bad); }),
              HasSubstr("m.pt: its extra file vocabulary.json is not a JSON array of strings"));
}

TEST(ScriptFile, ADeepVocabularyIsAnError) {
  const SavedScript deep = {.module = table_module(at::eye(2)),
                            .extra_files = {{"vocabulary.json", std::string(60'000, '[')}}};
  EXPECT_THROW(script_vocabulary("m.pt", deep), CorruptInputError);
}

TEST(ScriptFile, AFolderThatIsNotThereIsNamed) {
  const TemporaryFolder folder;
  EXPECT_THAT(
      error_message<c10::ValueError>([&] { save_script(folder / "no/m.pt", {.module = table_module(at::eye(2))}); }),
      HasSubstr("no/m.pt"));
}

TEST(ScriptFile, SaysTheLossOfItsPredictions) {
  SavedScript saved = {.module = table_module(at::eye(2))};
  EXPECT_EQ(script_loss("m.pt", saved), std::nullopt);
  put_loss(saved, models::Loss::kMse);
  EXPECT_EQ(script_loss("m.pt", saved), models::Loss::kMse);
  put_loss(saved, std::nullopt);
  EXPECT_EQ(script_loss("m.pt", saved), std::nullopt);
  saved.extra_files["narrowcast_loss.txt"] = "hinge";
  EXPECT_EQ(error_message<CorruptInputError>([&] { script_loss("m.pt", saved); }),
            "m.pt: its extra file narrowcast_loss.txt: loss: must be cross_entropy, mse or bce_with_logits, but is "
            "'hinge'");
}

}  // namespace
}  // namespace narrowcast::files

#include "trainer/train/files/imported_file.h"

#include <ATen/ATen.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <string>

#include "tests/support/error_message.h"
#include "tests/support/temporary_folder.h"
#include "tests/support/trained_modules.h"
#include "trainer/train/files/weight_files.h"

namespace narrowcast::files {
namespace {

using ::testing::HasSubstr;
using testing::TemporaryFolder;

TEST(ImportedFile, AModuleIsInTrainingModeWithItsLoss) {
  const TemporaryFolder folder;
  const std::string path = folder / "net.pt";
  torch::jit::Module module = testing::digit_net();
  module.eval();
  module.save(path);
  const ImportedFile file = load_imported(path, "cross_entropy");
  EXPECT_TRUE(file.model->is_training());
  EXPECT_EQ(file.model->loss(), models::Loss::kCrossEntropy);
  EXPECT_EQ(file.hash, hash_of_files({path}));
  EXPECT_TRUE(file.warnings.empty());
  ASSERT_NE(file.script, nullptr);
  EXPECT_EQ(file.model->parameters().size(), file.script->module.parameters().size());
}

TEST(ImportedFile, ErrorsNameThePath) {
  const TemporaryFolder folder;
  const std::string package = folder.write("net.pt2", "no archive");
  EXPECT_THAT(testing::error_message<c10::ValueError>([&] { load_imported(package, ""); }),
              HasSubstr(package + ": is not a model package, or is damaged"));
  const std::string module = folder / "net.pt";
  testing::digit_net().save(module);
  EXPECT_THAT(testing::error_message<c10::ValueError>([&] { load_imported(module, ""); }), HasSubstr(module));
}

}  // namespace
}  // namespace narrowcast::files

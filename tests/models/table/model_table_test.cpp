#include "models/table/model_table.h"

#include <c10/util/Exception.h>
#include <gtest/gtest.h>

#include <string>
#include <vector>

#include <narrowcast/models.h>
#include "tests/support/error_message.h"

namespace narrowcast::models {
namespace {

TEST(ModelTable, APathIsThatOfATorchScriptModule) {
  EXPECT_TRUE(is_script("nets/digits.pt"));
  EXPECT_FALSE(is_script("char_gpt"));
  EXPECT_TRUE(any_model_row("digits.pt").learns());
  EXPECT_EQ(any_model_row("mlp").name, "mlp");
  EXPECT_EQ(testing::error_message<c10::ValueError>([] { model_row("digits.pt"); }),
            "model: unknown name 'digits.pt'; known: char_gpt, ddp_comm_hook_task, gpt, mlp");
}

// These sizes are only known from the data.
TEST(ModelTable, ARowSaysTheDataWhoseSizesAreOptions) {
  for (const std::string& name : model_names()) {
    const ModelRow& row = model_row(name);
    EXPECT_EQ(row.has_option("vocabulary_size") && row.has_option("context"), row.data == DataKind::kText) << name;
    EXPECT_EQ(row.has_option("inputs") && row.has_option("classes"), row.data == DataKind::kImages) << name;
  }
}

TEST(ModelTable, OnlyTheVocabularyOfGpt2MayBeLargerThanTheDatas) {
  for (const std::string& name : model_names()) {
    const ModelRow& row = model_row(name);
    EXPECT_TRUE(row.fits(9, 9)) << name;
    EXPECT_FALSE(row.fits(8, 9)) << name;
    EXPECT_EQ(row.fits(10, 9), name == "gpt") << name;
  }
  EXPECT_FALSE(any_model_row("digits.pt").fits(10, 9));
}

TEST(ModelTable, ModelsWithDataCanBeTrained) {
  EXPECT_EQ(learning_models(), std::vector<std::string>({"char_gpt", "gpt", "mlp"}));
  EXPECT_EQ(fixed_models(), std::vector<std::string>({"ddp_comm_hook_task"}));
}

}  // namespace
}  // namespace narrowcast::models

#include "trainer/train/data/checked_targets.h"

#include <ATen/ATen.h>
#include <c10/util/Exception.h>
#include <gtest/gtest.h>

#include <memory>

#include "tests/support/data_files.h"
#include "tests/support/error_message.h"
#include "tests/support/temporary_folder.h"

namespace narrowcast::data {
namespace {

using testing::error_message;
using testing::TemporaryFolder;

// Sample 1 of the training data and held-out sample 0 have targets outside 0..1.
TEST(CheckedTargets, AreTheDataSetsButForWhatIsWrong) {
  const TemporaryFolder folder;
  testing::write_tensors(folder, "train", at::ones({3, 2}), at::tensor({0.0, 1.5, 1.0}));
  testing::write_tensors(folder, "validation", at::ones({2, 2}), at::tensor({-1.0, 1.0}));
  const auto read = [&] {
    return read_data({.model = "net.pt", .paths = {folder.path().string()}}, [](const auto&) { return 1; }).dataset;
  };
  const std::unique_ptr<Dataset> plain = read();
  const CheckedTargets checked(read(), [](const at::Tensor& targets) {
    TORCH_CHECK_VALUE(targets.min().item<float>() >= 0 && targets.max().item<float>() <= 1, "no share");
  });
  EXPECT_EQ(checked.training_size(), 3);
  EXPECT_EQ(checked.held_out_size(), 2);
  EXPECT_EQ(checked.class_bound(), plain->class_bound());
  EXPECT_TRUE(checked.training_batch({2, 0}).targets.equal(plain->training_batch({2, 0}).targets));
  EXPECT_TRUE(checked.held_out_batch({1}).inputs.equal(plain->held_out_batch({1}).inputs));
  EXPECT_EQ(error_message<c10::ValueError>([&] { checked.training_batch({0, 1}); }), "no share");
  EXPECT_EQ(error_message<c10::ValueError>([&] { checked.held_out_batch({0}); }), "no share");
}

}  // namespace
}  // namespace narrowcast::data

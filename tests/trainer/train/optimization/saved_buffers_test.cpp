#include "trainer/train/optimization/saved_buffers.h"

#include <ATen/ops/arange.h>
#include <ATen/ops/full.h>
#include <gtest/gtest.h>
#include <torch/nn/module.h>

#include <string>
#include <vector>

namespace narrowcast::training {
namespace {

constexpr at::ScalarType kBufferDtypes[] = {at::kFloat,  at::kDouble,       at::kHalf,          at::kBFloat16,
                                            at::kByte,   at::kChar,         at::kShort,         at::kInt,
                                            at::kLong,   at::kBool,         at::kUInt16,        at::kUInt32,
                                            at::kUInt64, at::kComplexFloat, at::kFloat8_e4m3fn, at::kFloat8_e5m2};

at::Tensor bytes_of(const at::Tensor& tensor) { return tensor.contiguous().flatten().view(at::kByte).clone(); }

// A buffer of each dtype, one non-contiguous, one under two names, and one without elements.
struct Buffers : torch::nn::Module {
  Buffers() {
    for (const at::ScalarType dtype : kBufferDtypes) {
      all.push_back(register_buffer(c10::toString(dtype), at::arange(6).to(dtype).view({2, 3})));
    }
    all.push_back(register_buffer("transposed", at::arange(6, at::kFloat).view({2, 3}).t()));
    all.push_back(register_buffer("scalar", at::full({}, 3, at::kLong)));
    register_buffer("scalar_again", all.back());
    all.push_back(register_buffer("empty", at::full({0}, 3, at::kLong)));
  }

  std::vector<at::Tensor> bytes() const {
    std::vector<at::Tensor> bytes;
    for (const at::Tensor& buffer : all) bytes.push_back(bytes_of(buffer));
    return bytes;
  }

  void overwrite() {
    for (const at::Tensor& buffer : all) buffer.copy_(at::full({}, 1, at::kFloat).to(buffer.scalar_type()));
  }

  std::vector<at::Tensor> all;
};

void expect_bytes(const std::vector<at::Tensor>& bytes, const std::vector<at::Tensor>& expected) {
  for (size_t i = 0; i < expected.size(); ++i) EXPECT_TRUE(bytes[i].equal(expected[i])) << i;
}

TEST(SavedBuffers, RestoreWhatWasSavedLast) {
  Buffers module;
  SavedBuffers saved(module);
  const std::vector<at::Tensor> initial = module.bytes();
  saved.save();
  module.overwrite();
  const std::vector<at::Tensor> overwritten = module.bytes();
  EXPECT_FALSE(overwritten[0].equal(initial[0]));
  saved.restore();
  expect_bytes(module.bytes(), initial);
  module.overwrite();
  saved.save();
  saved.restore();
  expect_bytes(module.bytes(), overwritten);
}

TEST(SavedBuffers, RestoreNothingBeforeTheyAreSaved) {
  Buffers module;
  const SavedBuffers saved(module);
  module.overwrite();
  const std::vector<at::Tensor> overwritten = module.bytes();
  saved.restore();
  expect_bytes(module.bytes(), overwritten);
}

TEST(SavedBuffers, AreNoneOfAModuleWithoutBuffers) {
  torch::nn::Module module;
  SavedBuffers saved(module);
  saved.save();
  EXPECT_NO_THROW(saved.restore());
}

}  // namespace
}  // namespace narrowcast::training

#include <ATen/ATen.h>
#include <c10/util/Exception.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <string>

#include "ops/collectives/quantized_all_reduce.h"
#include "ops/dispatch.h"
#include "tests/ops/collectives/auto_quantize/calls.h"
#include "tests/ops/collectives/mean/reference_mean.h"
#include "tests/ops/script.h"
#include "tests/support/error_message.h"
#include "tests/support/ranks.h"

namespace narrowcast {
namespace {

using collectives::two_shot_mean;
using ::testing::AllOf;
using testing::error_message;
using ::testing::HasSubstr;
using testing::run_ranks;
using Group = c10::intrusive_ptr<c10d::ProcessGroup>;

constexpr int64_t kRanks = 3;

at::Tensor run_operator(const at::Tensor& x, const std::string& format, const std::string& group) {
  static const auto op = find_operator<at::Tensor(const at::Tensor&, std::string_view, std::string_view)>(
      "narrowcast::quantized_all_reduce");
  return op.call(x, format, group);
}

void run_operator_(const at::Tensor& x, const std::string& format, const std::string& group) {
  static const auto op =
      find_operator<void(const at::Tensor&, std::string_view, std::string_view)>("narrowcast::quantized_all_reduce_");
  op.call(x, format, group);
}

std::vector<at::Tensor> make_inputs(at::IntArrayRef shape) {
  at::manual_seed(3);
  std::vector<at::Tensor> inputs;
  for (int64_t rank = 0; rank < kRanks; ++rank) inputs.push_back(at::randn(shape));
  return inputs;
}

at::Tensor expected_mean(WireFormat format, std::vector<at::Tensor> inputs) {
  const auto shape = inputs[0].sizes().vec();
  for (at::Tensor& input : inputs) input = input.reshape({-1});
  return two_shot_mean({format}, inputs).view(shape);
}

TEST(QuantizedAllReduce, AveragesInEveryWayItCanBeCalled) {
  const auto inputs = make_inputs({500, 600});
  const at::Tensor expected = expected_mean(WireFormat::kInt4B32, inputs);
  run_ranks(kRanks, [&](int64_t rank, const Group& group) {
    const test::RegisteredGroup registered(group);
    const at::Tensor x = inputs[rank].clone();
    EXPECT_TRUE(at::equal(quantized_all_reduce(x, WireFormat::kInt4B32, group), expected));
    EXPECT_TRUE(at::equal(run_operator(x, "int4_b32", registered.name()), expected));
    EXPECT_TRUE(at::equal(x, inputs[rank])) << "x is left alone";
    quantized_all_reduce_(x, WireFormat::kInt4B32, group);
    EXPECT_TRUE(at::equal(x, expected));
    const at::Tensor y = inputs[rank].clone();
    run_operator_(y, "int4_b32", registered.name());
    EXPECT_TRUE(at::equal(y, expected));
  });
}

TEST(QuantizedAllReduce, TakesAnyLayoutAndDtypeInMemoryOrderOfTheContiguousTensor) {
  for (const auto dtype : {at::kFloat, at::kDouble, at::kHalf, at::kBFloat16}) {
    auto inputs = make_inputs({600, 500});
    for (at::Tensor& input : inputs) input = input.to(dtype).t();
    std::vector<at::Tensor> contiguous;
    for (const at::Tensor& input : inputs) contiguous.push_back(input.contiguous());
    const at::Tensor expected = expected_mean(WireFormat::kInt8B128, contiguous);
    run_ranks(kRanks, [&](int64_t rank, const Group& group) {
      EXPECT_TRUE(at::equal(quantized_all_reduce(inputs[rank], WireFormat::kInt8B128, group), expected)) << dtype;
      const at::Tensor x = inputs[rank].clone();
      ASSERT_FALSE(x.is_contiguous());
      quantized_all_reduce_(x, WireFormat::kInt8B128, group);
      EXPECT_TRUE(at::equal(x, expected)) << dtype;
    });
  }
}

TEST(QuantizedAllReduce, RanksThatDisagreeAllThrowTheSame) {
  run_ranks(kRanks, [&](int64_t rank, const Group& group) {
    const at::Tensor x = at::ones({rank == 2 ? 6 : 5});
    EXPECT_THAT(error_message<c10::ValueError>([&] { quantized_all_reduce_(x, WireFormat::kInt8B32, group); }),
                HasSubstr("x has 6 elements on rank 2 but 5 on rank 0"));
    EXPECT_TRUE(x.eq(1).all().item<bool>());
    const WireFormat format = rank == 1 ? WireFormat::kFp32 : WireFormat::kInt8B32;
    EXPECT_THAT(error_message<c10::ValueError>([&] { quantized_all_reduce(at::ones({5}), format, group); }),
                HasSubstr("format is fp32 on rank 1 but int8_b32 on rank 0"));
  });
}

TEST(QuantizedAllReduce, RefusesArgumentsBeforeAnythingIsSent) {
  run_ranks(1, [](int64_t, const Group& group) {
    const test::RegisteredGroup registered(group);
    const std::string& name = registered.name();
    EXPECT_THAT(error_message<c10::TypeError>([&] { run_operator_(at::ones({2}, at::kInt), "int8_b32", name); }),
                AllOf(HasSubstr("x must be float32"), HasSubstr("Int")));
    EXPECT_THAT(error_message<c10::ValueError>([&] { run_operator(at::ones({2}), "int7", name); }),
                AllOf(HasSubstr("int7"), HasSubstr("int8_b128")));
    EXPECT_THAT(error_message<c10::ValueError>([&] { run_operator(at::ones({2}), "int8_b32", "nobody"); }),
                HasSubstr("group_name: no process group is registered as \"nobody\""));
    EXPECT_THAT(error_message<c10::ValueError>([&] { quantized_all_reduce({}, WireFormat::kFp32, group); }),
                HasSubstr("x is an undefined tensor"));
    EXPECT_THAT(error_message<c10::ValueError>([&] { quantized_all_reduce(at::ones({2}), WireFormat::kFp32, {}); }),
                HasSubstr("group must be a process group"));
  });
}

TEST(QuantizedAllReduce, KnowsItsOutputOnTheMetaDevice) {
  const at::Tensor x = at::empty({3, 4}, at::dtype(at::kHalf).device(at::kMeta)).t();
  const at::Tensor mean = run_operator(x, "int8_b128", "nobody");
  EXPECT_EQ(mean.sizes(), at::IntArrayRef({4, 3}));
  EXPECT_EQ(mean.scalar_type(), at::kHalf);
  EXPECT_TRUE(mean.is_meta() && mean.is_contiguous());
  EXPECT_NO_THROW(run_operator_(x, "int8_b128", "nobody"));
}

TEST(QuantizedAllReduce, HasNoDerivativeAndSaysSo) {
  run_ranks(1, [](int64_t, const Group& group) {
    const test::RegisteredGroup registered(group);
    const auto backward_error = [](const at::Tensor& result) {
      return error_message<c10::Error>([&] { result.sum().backward(); });
    };
    const at::Tensor leaf = at::ones({3}).requires_grad_();
    EXPECT_THAT(backward_error(run_operator(leaf, "int8_b32", registered.name())), HasSubstr("quantized_all_reduce"));
    EXPECT_THAT(backward_error(quantized_all_reduce(leaf, WireFormat::kFp32, group)), HasSubstr("not implemented"));
    at::Tensor inner = leaf * 2;
    run_operator_(inner, "int8_b32", registered.name());
    EXPECT_THAT(backward_error(inner), HasSubstr("not implemented"));
  });
}

}  // namespace
}  // namespace narrowcast

// The auto_quantize operators: wrong arguments, the meta device, autograd.
#include <ATen/ATen.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <functional>
#include <limits>
#include <string>
#include <vector>

#include "tests/ops/collectives/auto_quantize/calls.h"
#include "tests/ops/quantize_tensor/reference.h"
#include "tests/support/error_message.h"
#include "tests/support/ranks.h"

namespace narrowcast {
namespace {

using test::call_operator;
using test::Group;
using testing::error_message;
using ::testing::HasSubstr;
using testing::RegisteredGroup;
using testing::run_ranks;
using Tensors = std::vector<at::Tensor>;
using Rows = std::vector<int64_t>;

// Runs `body` on two ranks, with the name of the group. Both make the same wrong calls. Calls that are wrong on one
// rank only are in agreement_test.cpp.
void both_of_two(const std::function<void(const std::string& group)>& body) {
  run_ranks(2, [&](int64_t, const Group& group) {
    const RegisteredGroup registered(group);
    body(registered.name());
  });
}

// The error text for a wrong argument of rank 0, without the name of call and rank at its beginning.
template <class Error, class... Arguments>
std::string error_of_rank_0(const std::string& collective, const Arguments&... arguments) {
  const std::string name = "auto_quantize_" + collective;
  const std::string message = error_message<Error>([&] { call_operator(name, arguments...); });
  const std::string beginning = name + " on rank 0: ";
  return message.rfind(beginning, 0) == 0 ? message.substr(beginning.size()) : "not told to all ranks: " + message;
}

template <class... Arguments>
std::string value_error(const std::string& collective, const Arguments&... arguments) {
  return error_of_rank_0<c10::ValueError>(collective, arguments...);
}

template <class... Arguments>
std::string type_error(const std::string& collective, const Arguments&... arguments) {
  return error_of_rank_0<c10::TypeError>(collective, arguments...);
}

// Returns the message of a call that is refused before a process group is known, or by the kernel for the meta device.
template <class... Arguments>
std::string local_error(const std::string& collective, const Arguments&... arguments) {
  return error_message<c10::ValueError>([&] { call_operator("auto_quantize_" + collective, arguments...); });
}

const at::Tensor kOne = at::ones({2});
const at::Tensor kInts = at::ones({2}, at::kInt);
const at::Tensor kMeta = at::ones({2}, at::kMeta);

TEST(AutoQuantizeOperatorErrors, NameTheDtype) {
  const std::string expected = " must be float32, float64, bfloat16 or float16, not Int";
  both_of_two([&](const std::string& group) {
    EXPECT_EQ(type_error("all_gather", Tensors{kOne, kInts}, kOne, "fp16", group), "outputs[1]" + expected);
    EXPECT_EQ(type_error("all_gather", Tensors{kOne, kOne}, kInts, "fp16", group), "input" + expected);
    EXPECT_EQ(type_error("all_to_all", Tensors{kInts, kOne}, Tensors{kOne, kOne}, "fp16", group),
              "outputs[0]" + expected);
    EXPECT_EQ(type_error("all_to_all", Tensors{kOne, kOne}, Tensors{kOne, kInts}, "fp16", group),
              "inputs[1]" + expected);
    EXPECT_EQ(type_error("all_to_all_single", kInts, kOne, "fp16", group), "output" + expected);
    EXPECT_EQ(type_error("all_to_all_single", kOne, kInts, "fp16", group), "input" + expected);
  });
}

TEST(AutoQuantizeOperatorErrors, NameTheUndefinedTensor) {
  const at::Tensor none;
  both_of_two([&](const std::string& group) {
    EXPECT_EQ(value_error("all_gather", Tensors{kOne, none}, kOne, "fp16", group), "outputs[1] is an undefined tensor");
    EXPECT_EQ(value_error("all_gather", Tensors{kOne, kOne}, none, "fp16", group), "input is an undefined tensor");
    EXPECT_EQ(value_error("all_to_all", Tensors{kOne, kOne}, Tensors{none, kOne}, "fp16", group),
              "inputs[0] is an undefined tensor");
    EXPECT_EQ(value_error("all_to_all_single", none, kOne, "fp16", group), "output is an undefined tensor");
    EXPECT_EQ(value_error("all_to_all_single", none, none, "fp16", group), "output is an undefined tensor");
  });
}

TEST(AutoQuantizeOperatorErrors, NameTheTensorThatIsElsewhere) {
  both_of_two([&](const std::string& group) {
    EXPECT_EQ(local_error("all_gather", Tensors{kOne, kMeta}, kOne, "fp16", group),
              "outputs[1] is on meta but the first tensor is on cpu");
    EXPECT_EQ(local_error("all_gather", Tensors{kOne, kOne}, kMeta, "fp16", group),
              "input is on meta but outputs[0] is on cpu");
    EXPECT_EQ(local_error("all_to_all", Tensors{kOne, kOne}, Tensors{kMeta, kOne}, "fp16", group),
              "inputs[0] is on meta but the first tensor is on cpu");
    EXPECT_EQ(local_error("all_to_all_single", kMeta, kOne, "fp16", group), "input is on cpu but output is on meta");
  });
}

TEST(AutoQuantizeOperatorErrors, NameTheCountThatIsWrong) {
  both_of_two([&](const std::string& group) {
    EXPECT_EQ(value_error("all_gather", Tensors{}, kOne, "fp16", group),
              "outputs must hold one tensor per rank, but is empty");
    EXPECT_EQ(value_error("all_gather", Tensors{kOne}, kOne, "fp16", group),
              "outputs must hold one tensor per rank, 2, but holds 1");
    EXPECT_EQ(value_error("all_to_all", Tensors{}, Tensors{}, "fp16", group),
              "outputs must hold one tensor per rank, but is empty");
    EXPECT_EQ(value_error("all_to_all", Tensors{kOne, kOne}, Tensors{}, "fp16", group),
              "inputs must hold one tensor per rank, but is empty");
    EXPECT_EQ(value_error("all_to_all", Tensors{kOne, kOne}, Tensors{kOne, kOne, kOne}, "fp16", group),
              "inputs must hold one tensor per rank, 2, but holds 3");
  });
}

TEST(AutoQuantizeOperatorErrors, NameTheShapeThatIsWrong) {
  both_of_two([&](const std::string& group) {
    EXPECT_EQ(value_error("all_gather", Tensors{at::ones({2, 1}), kOne}, kOne, "fp16", group),
              "outputs[0] of rank 0 has shape [2, 1] but its input has shape [2]");
    EXPECT_EQ(value_error("all_to_all_single", at::ones({}), kOne, "fp16", group),
              "output must have a dimension 0 to be split, but is 0-dimensional");
    EXPECT_EQ(value_error("all_to_all_single", kOne, at::ones({}), "fp16", group),
              "input must have a dimension 0 to be split, but is 0-dimensional");
    EXPECT_EQ(value_error("all_to_all_single", kOne, at::ones({3}), "fp16", group),
              "input has 3 rows, which cannot be split equally among 2 ranks; give input_split_sizes");
    EXPECT_EQ(value_error("all_to_all_single", at::ones({1}).expand({2}), kOne, "fp16", group),
              "output has elements that overlap in memory: its sizes are [2], its strides [0]");
    EXPECT_EQ(value_error("all_gather", Tensors{kOne, at::ones({1}).expand({2})}, kOne, "fp16", group),
              "outputs[1] has elements that overlap in memory: its sizes are [2], its strides [0]");
  });
}

TEST(AutoQuantizeOperatorErrors, NameTheSplitsThatAreWrong) {
  constexpr int64_t kMost = std::numeric_limits<int64_t>::max();
  both_of_two([&](const std::string& group) {
    const auto single = [&](const Rows& output, const Rows& input) {
      return value_error("all_to_all_single", kOne, kOne, "fp16", group, output, input);
    };
    EXPECT_EQ(single({1, 1, 0}, {}), "output_split_sizes must have one entry per rank, 2, but is [1, 1, 0]");
    EXPECT_EQ(single({}, {2}), "input_split_sizes must have one entry per rank, 2, but is [2]");
    EXPECT_EQ(single({1, 2}, {}), "output_split_sizes is [1, 2] but output has 2 rows");
    EXPECT_EQ(single({}, {1, 0}), "input_split_sizes is [1, 0] but input has 2 rows");
    EXPECT_EQ(single({}, {3, -1}), "input_split_sizes must not be negative, but is [3, -1]");
    EXPECT_THAT(single({kMost, kMost}, {}), HasSubstr("but output has 2 rows"));
  });
}

TEST(AutoQuantizeOperatorErrors, NameWhatIsUnknownOrUnsupported) {
  both_of_two([&](const std::string& group) {
    const std::string unknown_type = "Quantization type int8 is not supported";
    EXPECT_EQ(value_error("all_gather", Tensors{kOne, kOne}, kOne, "int8", group), unknown_type);
    EXPECT_EQ(value_error("all_to_all", Tensors{kOne, kOne}, Tensors{kOne, kOne}, "int8", group), unknown_type);
    EXPECT_EQ(value_error("all_to_all_single", kOne, kOne, "int8", group), unknown_type);
    const std::string unknown_group = "group_name: no process group is registered as \"nobody\"";
    EXPECT_EQ(local_error("all_gather", Tensors{kOne, kOne}, kOne, "fp16", "nobody"), unknown_group);
    EXPECT_EQ(local_error("all_to_all", Tensors{kOne, kOne}, Tensors{kOne, kOne}, "fp16", "nobody"), unknown_group);
    EXPECT_EQ(local_error("all_to_all_single", kOne, kOne, "fp16", "nobody"), unknown_group);
    const std::string async = "The async_op=True mode is not supported yet.";
    const c10::IValue none;
    EXPECT_EQ(value_error("all_gather", Tensors{kOne, kOne}, kOne, "fp16", group, none, true), async);
    EXPECT_EQ(value_error("all_to_all", Tensors{kOne, kOne}, Tensors{kOne, kOne}, "fp16", group, none, true), async);
    EXPECT_EQ(value_error("all_to_all_single", kOne, kOne, "fp16", group, none, none, none, true), async);
  });
}

TEST(AutoQuantizeOperatorErrors, NameAGroupThatIsNull) {
  EXPECT_EQ(error_message<c10::ValueError>([] { test::all_to_all_single({}, kOne, kOne, {}, nullptr); }),
            "group is null");
}

// Tensors on a device that no backend of the group serves.
TEST(AutoQuantizeOperatorErrors, NameADeviceWithoutBackend) {
  run_ranks(1, [](int64_t, const Group& group) {
    const auto collective = auto_quantize(collectives::all_gather, DQuantType::kFp16);
    EXPECT_EQ(error_message<c10::ValueError>([&] { collective(kMeta, kMeta, group); }),
              "auto_quantize_all_gather on rank 0: group test has no backend for tensors on meta");
  });
}

TEST(AutoQuantizeOperators, CheckAndDoNothingOnTheMetaDevice) {
  const at::Tensor ints = kInts.to(at::kMeta);
  EXPECT_NO_THROW(call_operator("auto_quantize_all_gather", Tensors{kMeta, kMeta}, kMeta, "fp16", "none"));
  EXPECT_NO_THROW(call_operator("auto_quantize_all_to_all", Tensors{kMeta}, Tensors{kMeta}, "bfp16", "none"));
  EXPECT_NO_THROW(call_operator("auto_quantize_all_to_all_single", kMeta, kMeta, "fp16", "none", Rows{1, 1}));
  EXPECT_THROW(call_operator("auto_quantize_all_gather", Tensors{kMeta, ints}, kMeta, "fp16", "none"), c10::TypeError);
  EXPECT_THROW(call_operator("auto_quantize_all_to_all_single", kMeta, kMeta, "int8", "none"), c10::ValueError);
}

void expect_no_derivative(const at::Tensor& output, const std::string& name) {
  ASSERT_TRUE(output.requires_grad());
  try {
    output.sum().backward();
    FAIL() << "backward did not throw";
  } catch (const std::exception& error) {
    EXPECT_THAT(error.what(), HasSubstr("derivative for narrowcast::auto_quantize_" + name + " is not implemented"));
  }
}

TEST(AutoQuantizeOperators, BackwardThroughTheOutputsThrows) {
  for (const test::Way way : test::kWays) {
    run_ranks(2, [&](int64_t, const Group& group) {
      const at::Tensor x = at::ones({2}).requires_grad_();
      const Tensors outputs{at::zeros({2}), at::zeros({2})};
      test::all_gather({.way = way}, outputs, x, group);
      expect_no_derivative(outputs[1], "all_gather");
      const Tensors exchanged{at::zeros({2}), at::zeros({2})};
      test::all_to_all({.way = way}, exchanged, {x, x}, group);
      expect_no_derivative(exchanged[0], "all_to_all");
      const at::Tensor output = at::zeros({2});
      test::all_to_all_single({.way = way}, output, x, {}, group);
      expect_no_derivative(output, "all_to_all_single");
      EXPECT_EQ(output.sum().item<float>(), 2);
    });
  }
}

TEST(AutoQuantizeOperators, RefuseALeafThatNeedsAGradient) {
  both_of_two([&](const std::string& group) {
    const at::Tensor leaf = at::ones({2}).requires_grad_();
    EXPECT_THAT(
        error_message<c10::Error>([&] { call_operator("auto_quantize_all_to_all_single", leaf, kOne, "fp16", group); }),
        HasSubstr("a leaf Variable that requires grad is being used in an in-place operation"));
  });
}

}  // namespace
}  // namespace narrowcast

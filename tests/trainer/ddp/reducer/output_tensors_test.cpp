#include <narrowcast/output_tensors.h>

#include <ATen/ATen.h>
#include <ATen/core/Dict.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <array>
#include <map>
#include <optional>
#include <string>
#include <tuple>
#include <vector>

namespace someones {

struct Output {
  at::Tensor loss;
  int64_t tokens = 0;
  std::vector<at::Tensor> states;
};

void for_each_tensor(Output& output, narrowcast::TensorVisitor visit) {
  visit(output.loss);
  narrowcast::visit_tensors(output.states, visit);
}

}  // namespace someones

namespace narrowcast {
namespace {

using ::testing::ElementsAre;
using ::testing::IsEmpty;

at::Tensor number(double value) { return at::full({}, value, at::kDouble); }

// Adds 10 to every tensor in `value` and returns the former numbers.
template <class T>
std::vector<double> add_ten(T& value) {
  std::vector<double> before;
  visit_tensors(value, [&](at::Tensor& tensor) {
    before.push_back(tensor.item<double>());
    tensor = tensor + 10;
  });
  return before;
}

// The present numbers in `value`.
template <class T>
std::vector<double> numbers_in(T& value) {
  std::vector<double> numbers;
  visit_tensors(value, [&](at::Tensor& tensor) { numbers.push_back(tensor.item<double>()); });
  return numbers;
}

TEST(OutputTensorsTest, FindsTensorsInStandardTypes) {
  at::Tensor one = number(1);
  EXPECT_THAT(add_ten(one), ElementsAre(1));
  EXPECT_THAT(numbers_in(one), ElementsAre(11));

  auto nested = std::make_tuple(
      number(1), 5, std::make_pair(number(2), std::string("text")), std::vector<at::Tensor>{number(3), number(4)},
      std::map<std::string, at::Tensor>{{"a", number(5)}, {"b", number(6)}}, std::array<at::Tensor, 1>{number(7)},
      std::optional<at::Tensor>(number(8)), std::optional<at::Tensor>(), std::vector<bool>{true});
  EXPECT_THAT(add_ten(nested), ElementsAre(1, 2, 3, 4, 5, 6, 7, 8));
  EXPECT_THAT(numbers_in(nested), ElementsAre(11, 12, 13, 14, 15, 16, 17, 18));
}

TEST(OutputTensorsTest, FindsTensorsWhereATypesAuthorSays) {
  someones::Output output{number(1), 2, {number(3), number(4)}};
  EXPECT_THAT(add_ten(output), ElementsAre(1, 3, 4));
  EXPECT_THAT(numbers_in(output), ElementsAre(11, 13, 14));
  std::vector<someones::Output> outputs = {output};
  EXPECT_THAT(numbers_in(outputs), ElementsAre(11, 13, 14));
}

TEST(OutputTensorsTest, PassesOverWhatHoldsNoTensor) {
  int64_t integer = 1;
  std::string text = "text";
  EXPECT_THAT(numbers_in(integer), IsEmpty());
  EXPECT_THAT(numbers_in(text), IsEmpty());
}

TEST(OutputTensorsTest, FindsTensorsInIValues) {
  c10::Dict<std::string, at::Tensor> dict;
  dict.insert("x", number(3));
  dict.insert("y", number(4));
  c10::IValue value = std::make_tuple(number(1), std::vector<at::Tensor>{number(2)}, dict, int64_t{7});
  EXPECT_THAT(add_ten(value), ElementsAre(1, 2, 3, 4));
  EXPECT_THAT(numbers_in(value), ElementsAre(11, 12, 13, 14));
  EXPECT_EQ(value.toTupleRef().elements()[3].toInt(), 7);
  EXPECT_EQ(value.toTupleRef().elements()[2].toGenericDict().size(), 2u);
}

TEST(OutputTensorsTest, LeavesTheListsThatTheModuleKeeps) {
  c10::List<at::Tensor> kept({number(1)});
  c10::IValue output = kept;
  EXPECT_THAT(add_ten(output), ElementsAre(1));
  EXPECT_EQ(kept.get(0).item<double>(), 1);
  EXPECT_THAT(numbers_in(output), ElementsAre(11));
}

}  // namespace
}  // namespace narrowcast

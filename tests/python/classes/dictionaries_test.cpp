#include "python/classes/dictionaries.h"

#include <ATen/ATen.h>
#include <ATen/core/jit_type.h>
#include <c10/util/Exception.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cstdint>
#include <map>
#include <string>
#include <variant>
#include <vector>

#include "tests/support/error_message.h"

namespace narrowcast::classes {
namespace {

using testing::error_message;
using ::testing::HasSubstr;

std::map<std::string, hooks::OptionValue> options_in(const OptionDict& dict) {
  std::map<std::string, hooks::OptionValue> options;
  for_each_option(dict, [&](const std::string& name, const hooks::OptionValue& value) { options[name] = value; });
  return options;
}

// Dictionaries with values of any type have no constructor of their own.
OptionDict dict_of(const std::map<std::string, c10::IValue>& entries) {
  const c10::impl::GenericDict dict(c10::StringType::get(), c10::AnyType::get());
  for (const auto& [name, value] : entries) dict.insert(name, value);
  return c10::impl::toTypedDict<std::string, c10::IValue>(dict);
}

TEST(Dictionaries, OptionsKeepTheirTypes) {
  const OptionDict dict = dict_of({{"nothing", c10::IValue()},
                                   {"is_set", true},
                                   {"number", int64_t{-7}},
                                   {"rate", 0.5},
                                   {"text", std::string("int8")}});
  EXPECT_EQ(options_in(dict), (std::map<std::string, hooks::OptionValue>{{"nothing", std::monostate()},
                                                                         {"is_set", true},
                                                                         {"number", int64_t{-7}},
                                                                         {"rate", 0.5},
                                                                         {"text", std::string("int8")}}));
}

TEST(Dictionaries, AnOptionOfAnotherTypeIsNamed) {
  const auto complaint = [](const c10::IValue& value) {
    return error_message<c10::TypeError>([&] { options_in(dict_of({{"rank", value}})); });
  };
  EXPECT_THAT(complaint(at::zeros({2})), HasSubstr("rank: must be a bool, int, float or str, but is Tensor"));
  EXPECT_THAT(complaint(std::vector<int64_t>{1}), HasSubstr("but is GenericList"));
}

// All ranks throw the error that Python found on one.
TEST(Dictionaries, ErrorsOfPythonKeepTheirClasses) {
  const auto given = [](const char* kind) { return dict_of({{kind, std::string("rank: must be at least 1")}}); };
  EXPECT_EQ(error_message<c10::ValueError>([&] { options_in(given(kWrongValue)); }), "rank: must be at least 1");
  EXPECT_EQ(error_message<c10::TypeError>([&] { options_in(given(kWrongType)); }), "rank: must be at least 1");
}

TEST(Dictionaries, AnUnknownOptionIsAnErrorWithTheKnownOnes) {
  const std::vector<hooks::NamedOption> options{{.name = "rank", .kind = {}, .value = int64_t{1}},
                                                {.name = "start", .kind = {}, .value = int64_t{2}}};
  EXPECT_NO_THROW(check_known("start", options, {"device"}));
  EXPECT_NO_THROW(check_known("device", options, {"device"}));
  EXPECT_EQ(error_message<c10::ValueError>([&] { check_known("ranks", options, {"device"}); }),
            "unknown option 'ranks'; known: rank, start, device");
}

// Later steps change the hook's tensors in place.
TEST(Dictionaries, AStateIsCopied) {
  const at::Tensor residual = at::ones({3});
  const StateDict dict = to_dict({{"residual.a", residual}, {"draws", hooks::int_tensor(4)}});
  residual.zero_();
  EXPECT_EQ(dict.size(), 2);
  EXPECT_TRUE(at::equal(dict.at("residual.a"), at::ones({3})));
  const hooks::HookState state = from_dict(dict);
  EXPECT_EQ(state.size(), 2);
  EXPECT_TRUE(at::equal(state.at("residual.a"), at::ones({3})));
  EXPECT_EQ(hooks::int_of(state, "draws"), 4);
}

TEST(Dictionaries, EachParameterHasAName) {
  const std::vector<at::Tensor> tensors{at::zeros({2}), at::zeros({3})};
  const std::vector<hooks::NamedParameter> parameters = named({"a", "b"}, tensors);
  ASSERT_EQ(parameters.size(), 2);
  EXPECT_EQ(parameters[1].name, "b");
  EXPECT_TRUE(parameters[1].tensor.is_same(tensors[1])) << "the parameter itself, by which states are found";
  EXPECT_EQ(error_message<c10::ValueError>([&] { named({"a"}, tensors); }), "names: there are 1 for 2 parameters");
}

}  // namespace
}  // namespace narrowcast::classes

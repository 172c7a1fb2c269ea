#include "hooks/row/option_values.h"

#include <c10/util/Exception.h>

#include <array>
#include <variant>

namespace narrowcast::hooks {
namespace {

template <class T>
const T& checked(const std::string& name, const char* expected, const OptionValue& value) {
  if (!std::holds_alternative<T>(value)) refuse_type(name, expected, value);
  return std::get<T>(value);
}

}  // namespace

void refuse_type(const std::string& name, const char* expected, const OptionValue& value) {
  static constexpr std::array kTypes{"none", "bool", "int", "float", "str"};
  TORCH_CHECK_TYPE(false, name, ": must be ", expected, ", but is ", kTypes.at(value.index()), " ", text_of(value));
}

void read_option(const std::string& name, const OptionValue& value, bool& member) {
  member = checked<bool>(name, "bool", value);
}

void read_option(const std::string& name, const OptionValue& value, int64_t& member) {
  member = checked<int64_t>(name, "int", value);
}

void read_option(const std::string& name, const OptionValue& value, double& member) {
  const auto* const integer = std::get_if<int64_t>(&value);
  member = integer != nullptr ? static_cast<double>(*integer) : checked<double>(name, "float", value);
}

void read_option(const std::string& name, const OptionValue& value, std::string& member) {
  member = checked<std::string>(name, "str", value);
}

}  // namespace narrowcast::hooks

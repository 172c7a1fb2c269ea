// Finds the tensors in the result of a module's forward.
#pragma once

#include <ATen/core/Tensor.h>
#include <ATen/core/ivalue.h>
#include <c10/util/FunctionRef.h>

#include <optional>
#include <string_view>
#include <tuple>
#include <type_traits>
#include <utility>

#include <narrowcast/export.h>

namespace narrowcast {

// A function that is called with each tensor and may replace it.
using TensorVisitor = c10::function_ref<void(at::Tensor&)>;

// Calls `visit` with every tensor in `value`, which it may replace. Lists, tuples and dictionaries are rebuilt, so that
// those that the module keeps do not change.
NARROWCAST_EXPORT void visit_ivalue_tensors(c10::IValue& value, TensorVisitor visit);

namespace output_tensors {

// The author of a type can define in its namespace where its tensors are:
//   void for_each_tensor(Output& output, narrowcast::TensorVisitor visit) { visit(output.loss); visit(output.logits); }
template <class T>
concept HasForEachTensor = requires(T& value, TensorVisitor visit) {
  for_each_tensor(value, visit);
};

// std::tuple, std::pair, std::array and other types that std::apply takes.
template <class T>
concept TupleLike = requires {
  std::tuple_size<T>::value;
};

// std::optional of anything.
template <class T>
concept Optional = std::is_same_v<T, std::optional<typename T::value_type>>;

// Containers of keys and values, e.g. std::map; tensors are looked for in the values.
template <class T>
concept Map = requires {
  typename T::key_type;
  typename T::mapped_type;
};

// Other containers, e.g. std::vector.
template <class T>
concept Range = requires(T& value) {
  value.begin();
  value.end();
  typename T::value_type;
};

// Numbers, enumerations and texts, which are skipped.
template <class T>
inline constexpr bool has_no_tensors =
    std::is_arithmetic_v<T> || std::is_enum_v<T> || std::is_convertible_v<const T&, std::string_view>;

// False, but only once a type is known: makes the last branch of visit_tensors fail to compile.
template <class T>
inline constexpr bool is_known_type = false;

}  // namespace output_tensors

// Calls `visit` with every tensor in `value`, always in the same order. `value` is a tensor, a c10::IValue, a tuple,
// pair, array, optional, range or map of such values, nested to any depth, or a type with for_each_tensor as above.
template <class T>
void visit_tensors(T& value, TensorVisitor visit) {
  using namespace output_tensors;
  if constexpr (std::is_same_v<T, at::Tensor>) {
    visit(value);
  } else if constexpr (std::is_same_v<T, c10::IValue>) {
    visit_ivalue_tensors(value, visit);
  } else if constexpr (HasForEachTensor<T>) {
    for_each_tensor(value, visit);
  } else if constexpr (has_no_tensors<std::remove_const_t<T>>) {
    return;
  } else if constexpr (TupleLike<T>) {
    std::apply([&](auto&... elements) { (visit_tensors(elements, visit), ...); }, value);
  } else if constexpr (Optional<T>) {
    if (value) visit_tensors(*value, visit);
  } else if constexpr (Map<T>) {
    for (auto& entry : value) visit_tensors(entry.second, visit);
  } else if constexpr (Range<T>) {
    if constexpr (!has_no_tensors<typename T::value_type>) {  // E.g. std::vector<bool>, which has no references.
      for (auto& element : value) visit_tensors(element, visit);
    }
  } else {
    static_assert(is_known_type<T>,
                  "DistributedDataParallel cannot see which tensors this output type holds: declare "
                  "void for_each_tensor(Output&, narrowcast::TensorVisitor) in the type's namespace");
  }
}

}  // namespace narrowcast

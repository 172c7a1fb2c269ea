#include <narrowcast/output_tensors.h>

#include <ATen/core/Dict.h>
#include <ATen/core/List.h>

#include <vector>

namespace narrowcast {
namespace {

c10::IValue visit_tuple(const c10::ivalue::Tuple& tuple, TensorVisitor visit) {
  std::vector<c10::IValue> elements = tuple.elements().vec();
  for (c10::IValue& element : elements) {
    visit_ivalue_tensors(element, visit);
  }
  const auto type = tuple.type<c10::TupleType>();  // Keeps the names of a named tuple.
  return c10::ivalue::Tuple::createNamed(std::move(elements), type);
}

c10::IValue visit_list(const c10::List<c10::IValue>& original, TensorVisitor visit) {
  c10::List<c10::IValue> list = original.copy();
  for (size_t i = 0; i < list.size(); ++i) {
    c10::IValue element = list.get(i);
    visit_ivalue_tensors(element, visit);
    list.set(i, std::move(element));
  }
  return list;
}

c10::IValue visit_dict(const c10::Dict<c10::IValue, c10::IValue>& original, TensorVisitor visit) {
  c10::Dict<c10::IValue, c10::IValue> dict = original.copy();
  for (const auto& entry : original) {
    c10::IValue element = entry.value();
    visit_ivalue_tensors(element, visit);
    dict.insert_or_assign(entry.key(), std::move(element));
  }
  return dict;
}

}  // namespace

void visit_ivalue_tensors(c10::IValue& value, TensorVisitor visit) {
  if (value.isTensor()) {
    at::Tensor tensor = value.toTensor();
    visit(tensor);
    value = std::move(tensor);
  } else if (value.isTuple()) {
    value = visit_tuple(value.toTupleRef(), visit);
  } else if (value.isList()) {
    value = visit_list(value.toList(), visit);
  } else if (value.isGenericDict()) {
    value = visit_dict(value.toGenericDict(), visit);
  }
}

}  // namespace narrowcast

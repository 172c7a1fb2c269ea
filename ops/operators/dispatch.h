// Calls of an operator family's operators from its C++ functions.
#pragma once

#include <ATen/core/Tensor.h>
#include <ATen/core/dispatch/Dispatcher.h>
#include <c10/util/Exception.h>

namespace narrowcast {

// The registered operator `name`, for instance "narrowcast::encode". Takes a lock: keep the result.
template <class Signature>
c10::TypedOperatorHandle<Signature> find_operator(const char* name) {
  return c10::Dispatcher::singleton().findSchemaOrThrow(name, "").typed<Signature>();
}

// Throws c10::ValueError naming the argument. (For an undefined tensor the dispatcher finds no kernel, and its message
// would not name the argument.)
inline void check_defined(const at::Tensor& tensor, const char* name) {
  TORCH_CHECK_VALUE(tensor.defined(), name, " is an undefined tensor");
}

}  // namespace narrowcast

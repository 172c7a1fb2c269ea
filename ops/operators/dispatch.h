// How the C++ functions of an operator family reach its operators.
#pragma once

#include <ATen/core/Tensor.h>
#include <ATen/core/dispatch/Dispatcher.h>
#include <c10/util/Exception.h>

namespace narrowcast {

// The registered operator `name`, for instance "narrowcast::encode". Takes a lock: keep what it returns.
template <class Signature>
c10::TypedOperatorHandle<Signature> find_operator(const char* name) {
  return c10::Dispatcher::singleton().findSchemaOrThrow(name, "").typed<Signature>();
}

// Throws c10::ValueError naming the argument. Without a tensor the dispatcher does not know where to go and says so in
// its own terms.
inline void check_defined(const at::Tensor& tensor, const char* name) {
  TORCH_CHECK_VALUE(tensor.defined(), name, " is an undefined tensor");
}

}  // namespace narrowcast

#include "models/imported/gradient_listener.h"

#include <c10/util/Exception.h>
#include <torch/library.h>

#include <utility>

namespace narrowcast::models {
namespace {

thread_local GradientListener* listener = nullptr;

at::Tensor gradient_ready(const at::Tensor& gradient, int64_t parameter) {
  if (listener != nullptr) {
    listener->hear(parameter, gradient);
  }
  return gradient.new_empty({0});
}

TORCH_LIBRARY_FRAGMENT(narrowcast, library) {
  library.def("gradient_ready(Tensor gradient, int parameter) -> Tensor");
  library.impl("gradient_ready", c10::DispatchKey::CompositeExplicitAutograd, gradient_ready);
}

}  // namespace

GradientListener::GradientListener(TakeGradient take) : take_(std::move(take)) {
  TORCH_INTERNAL_ASSERT(listener == nullptr, "a compiled training step runs inside another one");
  listener = this;
}

GradientListener::~GradientListener() { listener = nullptr; }

void GradientListener::hear(int64_t parameter, const at::Tensor& gradient) {
  if (failure_ != nullptr) return;
  try {
    take_(parameter, gradient);
  } catch (...) {
    failure_ = std::current_exception();
  }
}

void GradientListener::rethrow_failure() const {
  if (failure_ != nullptr) std::rethrow_exception(failure_);
}

}  // namespace narrowcast::models

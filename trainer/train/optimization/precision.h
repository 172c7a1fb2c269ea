// The floating type in which a training computes its forward and backward passes. Parameters, gradients and the
// optimizer's state are always float32.
#pragma once

#include <c10/core/DeviceType.h>
#include <c10/core/ScalarType.h>

#include <string>

namespace narrowcast::training {

// The floating type of the passes.
enum class Precision {
  kFp32,  // all computation in float32
  kBf16,  // matrix products and convolutions in bfloat16, by autocast; the rest as LibTorch's autocast chooses
  kFp16,  // the same in float16, with the loss scaled (GradScaler), since small gradients would become 0
};

// "fp32", "bf16" or "fp16"; anything else throws c10::ValueError.
Precision parse_precision(const std::string& name);

// The precision's name.
std::string to_string(Precision precision);

// Autocast to the precision's type on this thread, from here to the end of the scope. For kFp32 it does nothing.
class Autocast {
 public:
  Autocast(at::DeviceType device, Precision precision);
  ~Autocast();
  Autocast(const Autocast&) = delete;
  Autocast& operator=(const Autocast&) = delete;

 private:
  const at::DeviceType device_;
  const bool active_;
  bool was_enabled_ = false;
  at::ScalarType former_dtype_ = at::kFloat;
};

}  // namespace narrowcast::training

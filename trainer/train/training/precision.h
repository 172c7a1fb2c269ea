// In which floating type a training computes its forward and backward passes, and what keeps float16's gradients within
// range. Parameters, gradients and the optimizer's state are float32 always.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <string>
#include <vector>

#include "trainer/train/checkpoint/manifest.h"

namespace narrowcast::training {

// The floating type of the passes.
enum class Precision {
  kFp32,  // everything
  kBf16,  // matrix products and convolutions in bfloat16, by autocast; the rest as LibTorch's autocast has it
  kFp16,  // the same in float16, with the loss scaled (GradientScaler), since small gradients would become 0
};

// "fp32", "bf16" or "fp16"; anything else throws c10::ValueError.
Precision parse_precision(const std::string& name);

// The name of it.
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

// Dynamic loss scaling, with the rule and the defaults of torch.amp.GradScaler: the loss is multiplied with a scale
// before the backward pass and the gradients are divided by it afterwards. A step whose gradients are not all finite
// must be left out, and halves the scale; 2000 steps in a row without one double it.
//
// Ranks with equal gradients find and do the same. Its numbers are tensors on the device: only unscaling waits for it.
class GradientScaler {
 public:
  struct Options {
    double scale = 65536;
    double growth = 2;
    double backoff = 0.5;
    int64_t growth_interval = 2000;  // steps
  };
  explicit GradientScaler(at::Device device) : GradientScaler(device, Options()) {}
  GradientScaler(at::Device device, const Options& options);

  at::Tensor scaled(const at::Tensor& loss) const { return loss.mul(scale_); }

  // Divides the gradients of `parameters` by the scale, in place, and changes the scale for the next step. Returns
  // whether they are all finite.
  bool unscale(const std::vector<at::Tensor>& parameters);

  struct Unscaled {
    bool are_finite = false;
    double norm = 0;  // of the gradients divided by the scale, as gradient_norm says
  };

  // The same, and the norm, in one wait for the device.
  Unscaled unscale_and_measure(const std::vector<at::Tensor>& parameters);

  // The scale of the next step divided by that of the gradients that unscale() had last.
  double change() const { return change_; }

  double scale() const { return scale_.item<double>(); }

  // The scaler's own tensors: "scale" (float32) and "growth_tracker" (int32, steps since it changed), both scalars.
  checkpoint::TensorMap state() const { return {{"scale", scale_}, {"growth_tracker", growth_tracker_}}; }

  // Throws CorruptInputError naming a tensor that is missing or not of that kind, before anything is changed.
  void load_state(const checkpoint::TensorMap& state);

 private:
  // What unscale() does, without a wait. Returns how many gradients are not finite (or 1), the former scale and the
  // next one, [3] in float64.
  at::Tensor unscale_on_device(const std::vector<at::Tensor>& parameters);
  // Takes these numbers over once they are on the CPU. Returns whether the gradients are finite.
  bool take(const at::Tensor& known);

  const Options options_;
  at::Tensor scale_;
  at::Tensor growth_tracker_;
  double change_ = 1;
};

}  // namespace narrowcast::training

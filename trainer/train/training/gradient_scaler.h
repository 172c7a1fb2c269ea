// Keeps the gradients of a float16 training within float16's range.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <vector>

#include "trainer/train/checkpoint/content.h"

namespace narrowcast::training {

// Dynamic loss scaling, with the rule and the defaults of torch.amp.GradScaler: the loss is multiplied with a scale
// before the backward pass and the gradients are divided by it afterwards. A step whose gradients are not all finite
// must be left out, and halves the scale; 2000 steps in a row without one double it.
//
// Ranks with equal gradients find and do the same. Its numbers are tensors on the device: only unscale() waits for it.
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

  double scale() const { return scale_.item<double>(); }

  // The scaler's own tensors: "scale" (float32) and "growth_tracker" (int32, steps since it changed), both scalars.
  checkpoint::TensorMap state() const { return {{"scale", scale_}, {"growth_tracker", growth_tracker_}}; }

  // Throws CorruptInputError naming a tensor that is missing or not of that kind, before anything is changed.
  void load_state(const checkpoint::TensorMap& state);

 private:
  const Options options_;
  at::Tensor scale_;
  at::Tensor growth_tracker_;
};

}  // namespace narrowcast::training

// Dynamic loss scaling for float16: it keeps small gradients from becoming 0.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <vector>

#include <narrowcast/comm_hook.h>
#include <narrowcast/export.h>

namespace narrowcast {

class ShardedOptimizer;

// Options of GradScaler, with the names and the defaults of torch.amp.GradScaler.
struct GradScalerOptions {
  double init_scale = 65536;       // of the first step, > 0 and finite in float32
  double growth_factor = 2;        // of the scale after growth_interval finite steps in a row, > 1
  double backoff_factor = 0.5;     // of the scale after a step that is not finite, between 0 and 1
  int64_t growth_interval = 2000;  // steps, >= 1
};

// Scales the loss and divides the gradients by the scale, with the rule of torch.amp.GradScaler:
//
//   GradScaler scaler(device);
//   ...
//   ddp.zero_grad();
//   ddp.backward(scaler.scale(loss));  // averages scaled gradients
//   const bool finite = scaler.unscale(ddp.module()->parameters());
//   if (scaler.change() != 1) ddp.rescale_hook_state(scaler.change());
//   if (finite) optimizer.step();
//
// The optimizer must skip a step whose gradients are not all finite; such a step multiplies the scale by
// backoff_factor. After growth_interval finite steps in a row the scale is multiplied by growth_factor.
//
// Ranks with equal gradients get equal results, without communication. The scale is a tensor on the device: only the
// functions that return a bool or a double wait for a GPU. Not thread-safe.
class NARROWCAST_EXPORT GradScaler {
 public:
  // `device`: the device of loss and gradients. Throws c10::ValueError for an option that is out of range.
  explicit GradScaler(at::Device device, const GradScalerOptions& options = {});

  // loss * scale, of the loss's shape and dtype: call backward on it.
  at::Tensor scale(const at::Tensor& loss) const { return loss.mul(scale_); }

  // Divides the gradients of `parameters` by the scale, in place, then updates the scale for the next step. Returns
  // whether all gradients are finite. Parameters without a gradient are skipped. Call it once per step, after the last
  // backward pass and before gradients are clipped.
  bool unscale(const std::vector<at::Tensor>& parameters);

  // Result of unscale_and_measure.
  struct Unscaled {
    bool are_finite = false;
    double norm = 0;  // 2-norm of all unscaled gradients as one vector, summed in float64
  };

  // Does the same as unscale and computes the norm of the unscaled gradients, with one wait for a GPU.
  Unscaled unscale_and_measure(const std::vector<at::Tensor>& parameters);

  // The same for the gradients of a sharded optimizer, of which each rank unscales its own: a collective, with the same
  // result on all ranks.
  Unscaled unscale_and_measure(ShardedOptimizer& optimizer);

  // The next step's scale divided by the scale of the step that was unscaled last: the factor for
  // DistributedDataParallel::rescale_hook_state. 1 before the first step.
  double change() const { return change_; }

  // The scale of the next step.
  double get_scale() const { return scale_.item<double>(); }

  // "scale" (float32) and "growth_tracker" (int32, finite steps since the scale changed), both scalars on the device.
  // They are the scaler's own tensors, not copies.
  hooks::HookState state() const { return {{"scale", scale_}, {"growth_tracker", growth_tracker_}}; }

  // Resumes from such a state. Throws CorruptInputError naming a tensor that is missing or of another dtype or shape,
  // a scale that is not positive and finite, or a negative growth_tracker, before anything is changed.
  void load_state(const hooks::HookState& state);

 private:
  at::Tensor inverse_scale() const;
  at::Tensor unscale_on_device(const std::vector<at::Tensor>& parameters);
  at::Tensor update(const at::Tensor& found_nonfinite);
  bool take(const at::Tensor& known);

  const GradScalerOptions options_;
  at::Tensor scale_;
  at::Tensor growth_tracker_;
  double change_ = 1;
};

}  // namespace narrowcast

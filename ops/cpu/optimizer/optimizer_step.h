// Steps of AdamW and SGD for parameters of float32 on the CPU, on all threads of LibTorch. step_kernels.h has the
// formulas. Results depend neither on the number of threads nor on how parameters are divided into pieces.
#pragma once

#include <cstdint>
#include <vector>

#include <narrowcast/export.h>
#include "ops/cpu/optimizer/step_kernels.h"

namespace narrowcast {
namespace NARROWCAST_EXPORT cpu {  // Used by libnarrowcast_ddp as well.

struct AdamWHyperparameters {
  double learning_rate;
  double beta1;
  double beta2;
  double epsilon;
  double weight_decay;
};

// The factors of step `step` >= 1 for gradients that are multiplied by `gradient_scale` first, for example to clip
// them. They are computed in float64, with the same bits on every processor, and then rounded.
AdamWFactors adamw_factors(const AdamWHyperparameters& hyperparameters, int64_t step, double gradient_scale);

struct SgdHyperparameters {
  double learning_rate;
  double weight_decay;
  double momentum;
  double dampening;
  bool nesterov;
};

// The same for SGD. Step 1 does not dampen, and all later steps have equal factors.
SgdFactors sgd_factors(const SgdHyperparameters& hyperparameters, int64_t step, double gradient_scale);

// A parameter, or some consecutive elements of one. Different parameters may have taken different numbers of steps.
struct AdamWPiece {
  AdamWFactors factors;
  AdamWArrays arrays;
  int64_t size() const { return arrays.n; }
};

struct SgdPiece {
  SgdFactors factors;
  SgdArrays arrays;
  int64_t size() const { return arrays.n; }
};

// Takes the step of all pieces, which must not overlap.
void step_pieces(const std::vector<AdamWPiece>& pieces);
void step_pieces(const std::vector<SgdPiece>& pieces);

}  // namespace cpu
}  // namespace narrowcast

// Steps of AdamW and SGD over arrays of float32, in one pass over memory.
//
// Each operation rounds once to float32, half to even, in the order of the formulas, without fused multiply-add. An
// element's result therefore depends neither on its place in the arrays nor on the instruction set, which is chosen at
// run time. Each function runs on the calling thread (optimizer_step.h uses all threads). Arrays need no alignment,
// must not overlap, and may be null if n is 0.
//
// Inf and NaN propagate as the formulas say; the bits of a NaN are unspecified. A parameter that is Inf becomes NaN.
// flush(a) is 0 if |a| < 2^-126, else a. Otherwise decaying averages of zeros would remain subnormal forever, and
// processors need a hundred cycles for a product of subnormal numbers. All other results keep subnormal numbers.
#pragma once

#include <cstdint>

namespace narrowcast::cpu {

// The factors of one step of AdamW; made by adamw_factors (optimizer_step.h).
struct AdamWFactors {
  float gradient_scale;  // s
  float beta1;
  float rest_of_beta1;  // 1 - beta1
  float beta2;
  float rest_of_beta2;  // 1 - beta2
  float rate;           // r = lr * sqrt(1 - beta2^t) / (1 - beta1^t) in step t
  float epsilon;        // e = epsilon * sqrt(1 - beta2^t)
  float decay;          // w = lr * weight_decay
};

struct AdamWArrays {
  float* parameters;
  const float* gradients;
  float* averages;  // m, the moving average of gradients
  float* squares;   // v, the moving average of their squares
  int64_t n;
};

// A step of AdamW, from left to right for each element x with gradient g:
//   g = s * g
//   m = flush(beta1 * m + (1 - beta1) * g)
//   v = flush(beta2 * v + ((1 - beta2) * g) * g)
//   x = x - (r * (m / (sqrt(v) + e)) + w * x)
// This is torch.optim.AdamW up to rounding: algorithm 2 of Loshchilov & Hutter (arXiv:1711.05101), whose decay PyTorch
// multiplies by the learning rate. The corrections of the bias are in r and e, as in section 2 of Kingma & Ba
// (arXiv:1412.6980).
void step_adamw(const AdamWFactors& factors, const AdamWArrays& arrays);

// The factors of one step of SGD; made by sgd_factors (optimizer_step.h).
struct SgdFactors {
  float gradient_scale;  // s
  float rate;            // lr
  float decay;           // weight_decay, w
  float momentum;        // mu
  float share;           // c: 1 - dampening, and 1 in the first step
  bool nesterov;
};

struct SgdArrays {
  float* parameters;
  const float* gradients;
  float* momenta;  // b, zeros before the first step; null for SGD without momentum
  int64_t n;
};

// A step of SGD, from left to right for each element x with gradient g, as torch.optim.SGD defines it:
//   d = s * g + w * x
//   b = flush(mu * b + c * d)
//   x = x - lr * d           without momentum
//   x = x - lr * b           with momentum
//   x = x - lr * (d + mu * b)  with Nesterov's momentum
void step_sgd(const SgdFactors& factors, const SgdArrays& arrays);

}  // namespace narrowcast::cpu

#include "ops/cpu/optimizer/optimizer_step.h"

#include <ATen/Parallel.h>

#include <cmath>

#include "ops/cpu/optimizer/pieces.h"

namespace narrowcast::cpu {
namespace {

// base^exponent by squaring. std::pow may round differently on other processors. For 0 <= base < 1 the error is less
// than 2 * exponent * 2^-53 of the result.
double power(double base, int64_t exponent) {
  double result = 1;
  for (; exponent > 0; exponent /= 2) {
    if (exponent % 2 == 1) result *= base;
    base *= base;
  }
  return result;
}

AdamWArrays part_of(const AdamWArrays& all, int64_t first, int64_t n) {
  return {all.parameters + first, all.gradients + first, all.averages + first, all.squares + first, n};
}

SgdArrays part_of(const SgdArrays& all, int64_t first, int64_t n) {
  return {all.parameters + first, all.gradients + first, all.momenta == nullptr ? nullptr : all.momenta + first, n};
}

}  // namespace

AdamWFactors adamw_factors(const AdamWHyperparameters& hyperparameters, int64_t step, double gradient_scale) {
  const double of_average = 1 - power(hyperparameters.beta1, step);
  const double of_root = std::sqrt(1 - power(hyperparameters.beta2, step));
  return {.gradient_scale = static_cast<float>(gradient_scale),
          .beta1 = static_cast<float>(hyperparameters.beta1),
          .rest_of_beta1 = static_cast<float>(1 - hyperparameters.beta1),
          .beta2 = static_cast<float>(hyperparameters.beta2),
          .rest_of_beta2 = static_cast<float>(1 - hyperparameters.beta2),
          .rate = static_cast<float>(hyperparameters.learning_rate * of_root / of_average),
          .epsilon = static_cast<float>(hyperparameters.epsilon * of_root),
          .decay = static_cast<float>(hyperparameters.learning_rate * hyperparameters.weight_decay)};
}

SgdFactors sgd_factors(const SgdHyperparameters& hyperparameters, int64_t step, double gradient_scale) {
  return {.gradient_scale = static_cast<float>(gradient_scale),
          .rate = static_cast<float>(hyperparameters.learning_rate),
          .decay = static_cast<float>(hyperparameters.weight_decay),
          .momentum = static_cast<float>(hyperparameters.momentum),
          .share = step == 1 ? 1 : static_cast<float>(1 - hyperparameters.dampening),
          .nesterov = hyperparameters.nesterov};
}

void step_pieces(const std::vector<AdamWPiece>& pieces) {
  at::parallel_for(0, size_of_all(pieces), kPiecesGrain, [&](int64_t begin, int64_t end) {
    visit_pieces(pieces, begin, end, [](const AdamWPiece& piece, int64_t first, int64_t n) {
      step_adamw(piece.factors, part_of(piece.arrays, first, n));
    });
  });
}

void step_pieces(const std::vector<SgdPiece>& pieces) {
  at::parallel_for(0, size_of_all(pieces), kPiecesGrain, [&](int64_t begin, int64_t end) {
    visit_pieces(pieces, begin, end, [](const SgdPiece& piece, int64_t first, int64_t n) {
      step_sgd(piece.factors, part_of(piece.arrays, first, n));
    });
  });
}

}  // namespace narrowcast::cpu

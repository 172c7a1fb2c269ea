// PowerSGD's arithmetic on tensors of any device, by functions of ATen that wait for nothing: what they do depends on
// no number that the host would have to read.
#pragma once

#include <ATen/core/Tensor.h>

#include "ops/collectives/power_sgd/low_rank.h"

namespace narrowcast::collectives {

// Makes the columns of each of matrices [k, n, r], r <= n, orthonormal, in place. A column's norm is increased by
// `epsilon` before it divides. A column of norm 0 becomes that of `spare`, of the same sizes, made orthogonal to those
// before it or, without a spare, 0.
//   kOfAnyMachine: Gram-Schmidt in float64, twice over each column. The same bits on devices of one kind.
//   kOfPyTorch:    as orthogonalize for r <= 2, else as kOfAnyMachine: a QR decomposition would wait.
void orthogonalize_on_stream(const at::Tensor& matrices, double epsilon, LowRankBits bits,
                             const at::Tensor& spare = {});

// The same numbers on `device`. From the CPU to a GPU by pinned memory, so that the host waits for no stream.
at::Tensor on_device(const at::Tensor& numbers, at::Device device);

}  // namespace narrowcast::collectives

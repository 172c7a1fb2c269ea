// The arithmetic of PowerSGD on tensors of any device. These functions never wait for the device: their control flow
// does not depend on values that the host would have to read.
#pragma once

#include <ATen/core/Tensor.h>
#include <c10/core/Device.h>

#include "ops/collectives/power_sgd/low_rank.h"

namespace narrowcast::collectives {

// Makes the columns of each of matrices [k, n, r], r <= n, orthonormal, in place. Each column is divided by its norm
// plus `epsilon`. A column of norm 0 is replaced by that column of `spare` (same sizes), made orthogonal to the columns
// before it; without a spare it becomes 0. Except with kOfPyTorch and r <= 2, the same holds for a column that lies in
// the span of the columns before it, up to rounding within that span. A remainder that leads out of the span is kept,
// even if it is rounding error.
//   kOfAnyMachine: Gram-Schmidt in float64, three passes over each column. The same bits on devices of one kind.
//   kOfPyTorch:    as orthogonalize for r <= 2, else as kOfAnyMachine: a QR decomposition would wait.
void orthogonalize_on_stream(const at::Tensor& matrices, double epsilon, LowRankBits bits,
                             const at::Tensor& spare = {});

// Copies the numbers to `device`, from the CPU to a GPU through pinned memory, so that the host does not wait for a
// stream.
at::Tensor on_device(const at::Tensor& numbers, at::Device device);

}  // namespace narrowcast::collectives

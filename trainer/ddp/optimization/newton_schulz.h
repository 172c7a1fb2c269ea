// The orthogonalisation of Muon (narrowcast/muon.h), and its cost.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>

#include <narrowcast/muon.h>

namespace narrowcast::optim {

// O(u) of a matrix [m, n] of a floating type and with elements. The result has the dtype of the iterations. The
// operations are those of torch.optim.Muon (torch/optim/_muon.py).
at::Tensor orthogonalized(const at::Tensor& u, const MuonOptions& options);

// Floating-point operations of these iterations. Two for each product of a matrix multiplication.
int64_t orthogonalization_cost(at::IntArrayRef sizes, int64_t ns_steps);

}  // namespace narrowcast::optim

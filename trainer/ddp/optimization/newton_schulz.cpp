#include "trainer/ddp/optimization/newton_schulz.h"

#include <ATen/cpu/Utils.h>
#include <ATen/ops/addmm.h>
#include <ATen/ops/clamp_min.h>
#include <ATen/ops/linalg_vector_norm.h>
#include <ATen/ops/matmul.h>

#include <algorithm>
#include <string>

#include <narrowcast/consensus.h>

namespace narrowcast::optim {

at::Tensor orthogonalized(const at::Tensor& u, const MuonOptions& options) {
  const auto [a, b, c] = options.ns_coefficients();
  const bool is_tall = u.size(0) > u.size(1);
  at::Tensor x = u.to(options.ns_dtype().value_or(native_ns_dtype(u.device())), /*non_blocking=*/false, /*copy=*/true);
  if (is_tall) {
    x = x.t();
  }
  x.div_(at::linalg_vector_norm(x).clamp_min(options.eps()));
  for (int64_t step = 0; step < options.ns_steps(); ++step) {
    const at::Tensor gram = at::matmul(x, x.t());
    const at::Tensor polynomial = at::addmm(gram, gram, gram, /*beta=*/b, /*alpha=*/c);
    x = at::addmm(x, polynomial, x, /*beta=*/a);
  }
  return is_tall ? x.t() : x;
}

int64_t orthogonalization_cost(at::IntArrayRef sizes, int64_t ns_steps) {
  const auto [least, greatest] = std::minmax(sizes[0], sizes[1]);
  return 2 * ns_steps * least * least * (2 * greatest + least);
}

// As PyTorch detects them, with cpuinfo. Without such instructions, bfloat16 is slower than float32.
at::ScalarType native_ns_dtype(at::Device device) {
  static const bool has_bfloat16 = [] {
    const auto capabilities = at::cpu::get_cpu_capabilities();
    return std::ranges::any_of(std::initializer_list<std::string>{"amx_bf16", "avx512_bf16"}, [&](const auto& name) {
      const auto found = capabilities.find(name);
      return found != capabilities.end() && found->second.isBool() && found->second.toBool();
    });
  }();
  return !device.is_cpu() || has_bfloat16 ? at::kBFloat16 : at::kFloat;
}

at::ScalarType common_ns_dtype(const ProcessGroupPtr& group, at::Device device) {
  const bool is_bfloat16 = native_ns_dtype(device) == at::kBFloat16;
  const std::vector<double> others = all_reduce_sum(group, {is_bfloat16 ? 0.0 : 1.0});
  return others[0] == 0 ? at::kBFloat16 : at::kFloat;
}

}  // namespace narrowcast::optim

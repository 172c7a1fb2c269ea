#include "ops/collectives/power_sgd/power_sgd_step.h"

#include <ATen/ops/empty.h>
#include <ATen/ops/zeros.h>

#include <algorithm>
#include <cstddef>
#include <cstdint>

#include "ops/codec/wire_format.h"
#include "ops/collectives/power_sgd/low_rank.h"
#include "ops/collectives/power_sgd/stream_low_rank.h"

namespace narrowcast::collectives {
namespace {

SentArray sent_array(int64_t factor_numel, int64_t plain_numel, WireFormat format) {
  const int64_t block = codec::wire::visit(format, [](auto type) { return decltype(type)::kBlock; });
  return {factor_numel, {(factor_numel + block - 1) / block * block, plain_numel}};
}

}  // namespace

SentArrays sent_arrays(const PowerSgdJobOptions& options) {
  const CompressionPlan& plan = options.plan;
  return {.with_p = sent_array(plan.p_numel, plan.plain_numel, options.format),
          .with_q = options.alternates ? sent_array(plan.q_numel, plan.plain_numel, options.format)
                                       : SentArray{plan.q_numel, {plan.q_numel, 0}}};
}

std::vector<at::Tensor> take_matrices(const CompressionPlan& plan, const LowRankState& state, const at::Tensor& array) {
  if (state.residual.defined()) {
    array.add_(state.residual);
  }
  std::vector<at::Tensor> matrices;
  for (const MatrixBatch& batch : plan.batches) {
    matrices.push_back(batch.matrices(array));
  }
  return matrices;
}

void draw_unknown(const CompressionPlan& plan, at::TensorOptions numbers, SeedDraws& draws, LowRankBits bits,
                  LowRankState& state) {
  if (!state.factor.defined()) {
    state.factor = at::zeros({state.is_p ? plan.p_numel : plan.q_numel}, numbers);
    state.known.assign(plan.matrices(), false);
  }
  std::vector<bool>& known = state.known;
  if (std::ranges::find(known, false) == known.end()) {
    return;
  }
  NormalNumbers drawn(draws.next(), bits);
  size_t first = 0;
  for (const MatrixBatch& batch : plan.batches) {
    const auto begin = known.begin() + static_cast<std::ptrdiff_t>(first);
    const at::Tensor part = state.part_of(state.factor, batch);
    if (std::find(begin, begin + batch.count(), false) != begin + batch.count()) {
      const at::Tensor fresh = at::empty(part.sizes(), numbers.device(at::kCPU));
      drawn.fill(fresh);
      for (int64_t i = 0; i < batch.count(); ++i) {
        if (!begin[i]) part[i].copy_(on_device(fresh[i], part.device()));
      }
    }
    first += batch.begins.size();
  }
  known.assign(known.size(), true);
}

}  // namespace narrowcast::collectives

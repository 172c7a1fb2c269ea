#include "ops/collectives/power_sgd/low_rank_state.h"

#include <ATen/ops/empty.h>
#include <ATen/ops/zeros.h>

#include <algorithm>
#include <cstddef>
#include <cstdint>

#include "ops/collectives/power_sgd/stream_low_rank.h"

namespace narrowcast::collectives {

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

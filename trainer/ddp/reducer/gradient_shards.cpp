// The backward pass of a GradientReducer, and its parts for a sharded optimizer and for a Join.
#include <c10/util/Exception.h>
#include <c10/util/StringUtil.h>

#include <algorithm>
#include <string>

#include <narrowcast/gradient_reducer.h>
#include <narrowcast/network_errors.h>
#include "trainer/ddp/reducer/bucket_chooser.h"
#include "trainer/ddp/reducer/bucket_exchanges.h"
#include "trainer/ddp/reducer/pass_check.h"
#include "trainer/ddp/reducer/reducer.h"

namespace narrowcast {

std::vector<int64_t> GradientReducer::average_shards(std::optional<hooks::ShardRounding> rounding) {
  shard_rounding_ = rounding;
  return hook_ == nullptr ? std::vector<int64_t>() : hook_->average_shards(rounding);
}

void GradientReducer::backward(const at::Tensor& loss) const {
  if (has_averaged_shards_) check_shards();
  with_network_errors(group_->getRank(), "backward pass", [&] { loss.backward(); });
  has_averaged_shards_ = averages_shards() && synchronise_;
}

// The loss is multiplied, not the buckets: passes inside no_sync add up gradients of different weights.
void GradientReducer::backward(const at::Tensor& loss, double weight) const {
  const bool is_share = weight >= 0 && weight <= 1;  // NaN is none.
  if (!is_share) {
    const std::string wrong =
        c10::str("weight: must be this rank's share of the samples of all ranks, in 0..1, but is ", weight, " on rank ",
                 group_->getRank());
    if (synchronise_ && keeps_replicas_equal()) passes_->refuse(wrong);
    TORCH_CHECK_VALUE(false, wrong);
  }
  backward(loss.mul(weight * static_cast<double>(group_->getSize())));
}

void GradientReducer::zero_grad() {
  for (const NamedTensor& parameter : state_.parameters) parameter.tensor.mutable_grad().reset();
}

bool GradientReducer::compares_pass() const {
  return reducer_->should_rebuild_buckets() || (chooser_ != nullptr && chooser_->is_due());
}

// Ranks without data run the announced pass. They wait for this rank at the start of the forward pass if they compare
// the pass, and in a backward pass that averages.
void GradientReducer::check_announced_mode() const {
  if (!announced_ || announced_->averages == synchronise_) return;
  const std::string wrong =
      c10::str("Join: rank ", group_->getRank(), announced_->averages ? " is inside no_sync" : " is not inside no_sync",
               " in a pass for which begin_pass was called ", announced_->averages ? "outside" : "inside",
               " of it; call begin_pass inside the no_sync guard of the pass");
  if (announced_->averages || compares_pass()) passes_->refuse(wrong);
  TORCH_CHECK_VALUE(false, wrong);
}

void GradientReducer::end_announced_pass() {
  accumulates_ = !synchronise_;
  buffers_from_ = announced_ ? announced_->first_rank : 0;
  announced_.reset();
}

// After a pass that averaged shards: a second one would add to averages in a rank's own shard, and to its own gradients
// elsewhere.
void GradientReducer::check_shards() const {
  const auto has_gradient = [](const NamedTensor& parameter) { return parameter.tensor.grad().defined(); };
  TORCH_CHECK_VALUE(std::ranges::none_of(trainable_, has_gradient),
                    "the last averaged gradients are still there: with an optimizer that is sharded over all ranks, "
                    "call step() and zero_grad() before the next backward pass, and accumulate in no_sync()");
}

std::vector<std::vector<at::Tensor>> GradientReducer::buckets() const {
  auto last = exchanges_ == nullptr ? std::vector<std::vector<at::Tensor>>() : exchanges_->last_buckets();
  return last.empty() ? bucket_parameters(*reducer_) : last;
}

}  // namespace narrowcast

#include <narrowcast/join.h>

#include <ATen/core/grad_mode.h>
#include <ATen/ops/zeros.h>
#include <c10/util/Exception.h>
#include <c10/util/StringUtil.h>
#include <torch/csrc/autograd/custom_function.h>

#include <algorithm>
#include <numeric>
#include <vector>

#include <narrowcast/consensus.h>

namespace narrowcast {
namespace {

using torch::autograd::AutogradContext;
using torch::autograd::variable_list;

// A loss of 0 that reaches all of its inputs. Their gradients are undefined, so the Reducer sends the gradients that
// the parameters have already, or zeros.
struct ShadowLoss : torch::autograd::Function<ShadowLoss> {
  static variable_list forward(AutogradContext* context, at::TensorList inputs) {
    context->saved_data["inputs"] = static_cast<int64_t>(inputs.size());
    return {at::zeros({}, inputs[0].options())};
  }

  static variable_list backward(AutogradContext* context, const variable_list& /*gradients*/) {
    return variable_list(static_cast<size_t>(context->saved_data["inputs"].toInt()));
  }
};

// The numbers that ranks add up before a pass. A number for each rank follows: 1 if it has data, else 0.
enum Sums : size_t { kSamples, kWrong, kAverages, kEndsInsideNoSync, kFirstRank };

}  // namespace

void GradientReducer::run_shadow_pass() {
  const at::AutoGradMode with_gradients(true);
  if (!accumulates_) zero_grad();
  before_forward();
  after_forward({});
  if (synchronise_) {
    backward(ShadowLoss::apply(at::TensorList(tensors_of(trainable_)))[0]);
  }
}

Join::Join(GradientReducer& reducer) : reducer_(reducer) {
  TORCH_CHECK_VALUE(reducer.keeps_replicas_equal(),
                    "Join: needs a hook that averages all gradients in each step, but is ", "used with the hook ",
                    reducer.hook_name(), ", which lets replicas differ");
  const DdpOptions& options = reducer.options();
  TORCH_CHECK_VALUE(!options.find_unused_parameters() && !options.static_graph(), "Join: cannot be used with ",
                    options.static_graph() ? "static_graph" : "find_unused_parameters",
                    ", because a rank without data does not know which parameters a pass uses");
}

Join::Pass Join::meet(std::optional<int64_t> samples) const {
  const ProcessGroupPtr& group = reducer_.process_group();
  const bool is_wrong = samples.has_value() && *samples < 1;
  const bool takes_part = samples.has_value() && !is_wrong;
  std::vector<double> values(kFirstRank + static_cast<size_t>(group->getSize()));
  values[kSamples] = takes_part ? static_cast<double>(*samples) : 0;
  values[kWrong] = is_wrong ? 1 : 0;
  values[kAverages] = takes_part && reducer_.synchronise_ ? 1 : 0;
  values[kEndsInsideNoSync] = !samples.has_value() && !reducer_.synchronise_ ? 1 : 0;
  values[kFirstRank + static_cast<size_t>(group->getRank())] = takes_part ? 1 : 0;
  const std::vector<double> sums = all_reduce_sum(group, values);
  const auto ranks = sums.begin() + kFirstRank;
  const double with_data = std::accumulate(ranks, sums.end(), 0.0);
  TORCH_CHECK_VALUE(sums[kWrong] == 0, "samples: must be at least 1 in Join::begin_pass, but ",
                    is_wrong ? c10::str("is ", *samples) : "is less on another rank");
  TORCH_CHECK_VALUE(sums[kEndsInsideNoSync] == 0, "Join: finish() is called inside no_sync on ",
                    sums[kEndsInsideNoSync], " of ", group->getSize(), " ranks; end the guard before");
  TORCH_CHECK_VALUE(sums[kAverages] == 0 || sums[kAverages] == with_data, "Join: only ", with_data - sums[kAverages],
                    " of ", with_data, " ranks with data are inside no_sync; use it in the same passes on all ranks");
  const bool averages = sums[kAverages] > 0;
  if (with_data > 0) {
    reducer_.announced_ =
        GradientReducer::AnnouncedPass{.averages = averages, .first_rank = std::find(ranks, sums.end(), 1.0) - ranks};
  }
  return {.samples = sums[kSamples], .averages = averages};
}

double Join::begin_pass(int64_t samples) { return static_cast<double>(samples) / meet(samples).samples; }

int64_t Join::finish(const std::function<void()>& after_pass) {
  int64_t passes = 0;
  for (Pass pass = meet(std::nullopt); pass.samples > 0; pass = meet(std::nullopt)) {
    if (pass.averages) {
      reducer_.run_shadow_pass();
      after_pass();
      ++passes;
    } else {
      const NoSyncGuard alone = reducer_.no_sync();
      reducer_.run_shadow_pass();
    }
  }
  return passes;
}

}  // namespace narrowcast

#include "trainer/ddp/recovery/elastic_run.h"

#include <ATen/core/grad_mode.h>
#include <c10/util/Exception.h>
#include <c10/util/StringUtil.h>

#include <chrono>
#include <nlohmann/json.hpp>
#include <utility>
#include <vector>

#include <narrowcast/consensus.h>
#include <narrowcast/errors.h>
#include <narrowcast/network_errors.h>
#include "ops/comm/groups/broken_groups.h"
#include "ops/common/text.h"
#include "trainer/base/files/json.h"
#include "trainer/ddp/recovery/new_ranks.h"
#include "trainer/ddp/sharding/shared_parameters.h"

namespace narrowcast::recovery {
namespace {

using nlohmann::json;

constexpr const char* kRecovery = "recovery of lost ranks";
// Before names in RankState:
constexpr const char* kTensor = "tensor.";  // of ElasticState's tensors
constexpr const char* kPart = "part.";      // of its other parts, then their number in the order of names
constexpr const char* kHook = "hook.";      // of the hook's state

std::string part_prefix(size_t number) { return c10::str(kPart, number, "."); }

TensorMap with_prefix(const std::string& prefix, const TensorMap& tensors) {
  TensorMap result;
  for (const auto& [name, tensor] : tensors) result[prefix + name] = tensor;
  return result;
}

TensorMap cloned(TensorMap tensors) {
  for (auto& [name, tensor] : tensors) tensor = tensor.detach().clone();
  return tensors;
}

ElasticRecovery recovery_of(const SharedState& shared, int64_t step, const Attempt& attempt) {
  ElasticRecovery recovery = {.step = step, .lost_ranks = shared.lost_ranks};
  if (attempt.interrupted_at) {
    const auto elapsed = std::chrono::steady_clock::now() - *attempt.interrupted_at;
    recovery.seconds = std::chrono::duration<double>(elapsed).count();
  }
  return recovery;
}

}  // namespace

AttemptEnd ElasticRun::take_steps(const ProcessGroupPtr& group, const Attempt& attempt,
                                  const StopAgreement::Asked& asked) {
  const std::vector<int64_t> new_ranks = agree(group);
  std::optional<RankState> own;
  if (point_) {
    own = rank_state();
  }
  std::optional<SharedState> shared = share_states(group, std::move(own));
  if (shared) {
    restore(*shared, group);
  } else {
    check_equal_on_all_ranks(group, {{"first_step", std::to_string(options_.first_step)}});
    point_.reset();
  }
  const ElasticSteps steps = make_steps(group, new_ranks);
  has_agreed_ = true;
  if (!point_) {
    point_ = Point{.step = options_.first_step};
  } else if (point_->reducer) {
    steps.load_state(*point_->reducer);
  }
  const bool needs_copies = options_.copies_state || (steps.state && !point_->reducer);
  if (needs_copies && !point_->is_copied) {
    copy_state();
  }
  if (attempt.interrupted_at) {
    ++recoveries_;
  }
  if (shared && options_.on_recovery) {
    options_.on_recovery(recovery_of(*shared, point_->step, attempt));
  }
  return take_steps_from_point(group, steps, asked);
}

// A new rank that has another state ends alone. Returns the ranks that are new.
std::vector<int64_t> ElasticRun::agree(const ProcessGroupPtr& group) {
  const Standing standing = has_agreed_ ? Standing::kHasAgreed : Standing::kNew;
  const NewRanks found = check_new_ranks(group, standing, "state", description());
  is_misfit_ = !found.misfit.empty();
  TORCH_CHECK_VALUE(!is_misfit_, found.misfit);
  return found.ranks;
}

// Ranks that differ in what they make, e.g. in the hook, throw c10::ValueError. The ranks that have worked together
// have made it before. So new ranks are to blame, and end alone.
ElasticSteps ElasticRun::make_steps(const ProcessGroupPtr& group, const std::vector<int64_t>& new_ranks) {
  const bool some_have_worked = std::ssize(new_ranks) < group->getSize();
  try {
    return with_network_errors(group->getRank(), "making the object of the steps", [&] { return make_(group); });
  } catch (const c10::ValueError& error) {
    is_misfit_ = some_have_worked && !has_agreed_;
    TORCH_CHECK_WITH(DistBackendError, !has_agreed_ || new_ranks.empty(), "rank ", group->getRank(), ": with ",
                     describe_ranks(new_ranks), ", which are new: ", error.what_without_backtrace());
    throw;
  }
}

void ElasticRun::take_steps_once(const ProcessGroupPtr& group) const {
  check_equal_on_all_ranks(group, description());
  check_equal_on_all_ranks(group, {{"first_step", std::to_string(options_.first_step)}});
  const ElasticSteps steps = make_(group);
  for (int64_t step = options_.first_step; take(step, steps, group); ++step) {
  }
}

AttemptEnd ElasticRun::take_steps_from_point(const ProcessGroupPtr& group, const ElasticSteps& steps,
                                             const StopAgreement::Asked& asked) {
  StopAgreement agreement(group, asked);
  agreement.before_first_step();  // Newcomers are taken in after a step.
  int64_t step = point_->step;
  bool is_over = point_->is_over;
  while (!is_over) {
    is_over = !take(step, steps, group);
    collectives::wait_for_results(group);  // Before the state is copied.
    ++step;
    remember({.step = step, .is_over = is_over}, steps);
    // Before the buckets are settled, there is no point after this step.
    if (!is_over && agreement.after_step() == kNewcomers && point_->step == step) {
      return AttemptEnd::kRegroup;
    }
  }
  agreement.finish();
  barrier(group, "waiting until all ranks have taken the last step");
  return AttemptEnd::kDone;
}

// Takes the step, and returns whether there is another one.
bool ElasticRun::take(int64_t step, const ElasticSteps& steps, const ProcessGroupPtr& group) const {
  for (const auto& [name, part] : state_.tensors_) {
    sharding::check_is_not_shared(part.tensor, "ElasticGroup", c10::str("state ", in_quotes(name)));
  }
  const bool goes_on = with_network_errors(group->getRank(), c10::str("step ", step), [&] { return steps.take(step); });
  if (options_.copies_state && steps.sync_buffers) {
    steps.sync_buffers();  // Now, and not in the next forward pass: the state is equal between steps.
  }
  check_shapes();
  return goes_on;
}

// The next point is where all values of the state are known. Before the buckets are settled, the reducer's are not.
void ElasticRun::remember(const Point& next, const ElasticSteps& steps) {
  if (steps.state && !steps.buckets_are_settled()) {
    return;
  }
  point_ = next;
  if (steps.state) {
    point_->reducer = steps.state();
    for (TensorMap& state : point_->reducer->hook.states) state = cloned(std::move(state));
  }
  if (options_.copies_state) {
    copy_state();
  } else {
    copies_ = {};
  }
}

// Everything on which ranks must agree before tensors move between them.
std::vector<NamedValue> ElasticRun::description() const {
  std::vector<NamedValue> values;
  for (const auto& [name, part] : state_.tensors_) {
    values.push_back({c10::str("state '", name, "'"), c10::str(part.dtype, " ", at::IntArrayRef(part.sizes))});
  }
  for (const auto& [name, part] : state_.saved_) {
    values.push_back(
        {c10::str("state '", name, "'"), part.is_equal_on_all_ranks ? "saved by a function" : "an optimizer"});
  }
  values.push_back({"copies_state", options_.copies_state ? "true" : "false"});
  return values;
}

void ElasticRun::check_shapes() const {
  for (const auto& [name, part] : state_.tensors_) {
    TORCH_CHECK_VALUE(part.tensor.scalar_type() == part.dtype && part.tensor.sizes() == part.sizes,
                      "state: ", in_quotes(name), " was ", part.dtype, " ", at::IntArrayRef(part.sizes), " and is now ",
                      part.tensor.scalar_type(), " ", part.tensor.sizes(),
                      "; add what changes its shape by two functions, save and load");
  }
}

// The present values; the tensors of `common` and `own` may be the program's.
ElasticRun::Values ElasticRun::values_now() const {
  Values values;
  for (const auto& [name, part] : state_.tensors_) values.common[kTensor + name] = part.tensor.detach();
  size_t number = 0;
  for (const auto& [name, part] : state_.saved_) {
    TensorMap& tensors = part.is_equal_on_all_ranks ? values.common : values.own;
    tensors.merge(with_prefix(part_prefix(number++), part.save()));
  }
  return values;
}

void ElasticRun::copy_state() {
  Values values = values_now();
  for (const auto& [name, tensor] : values.common) {
    at::Tensor& copy = copies_.common[name];
    if (copy.defined() && copy.sizes() == tensor.sizes() && copy.scalar_type() == tensor.scalar_type()) {
      copy.copy_(tensor);
    } else {
      copy = tensor.detach().clone();
    }
  }
  copies_.own = cloned(std::move(values.own));
  point_->is_copied = true;
}

// The state of this rank at its last point.
RankState ElasticRun::rank_state() const {
  json values = {{"step", point_->step}, {"is_over", point_->is_over}};
  Values tensors = point_->is_copied ? copies_ : values_now();
  if (point_->reducer) {
    values["buckets"] = point_->reducer->buckets;
    values["reductions"] = point_->reducer->reductions;
    tensors.own.merge(with_prefix(kHook, point_->reducer->hook.own()));
  }
  return {.point = 2 * point_->step + (point_->is_over ? 1 : 0),
          .values = values.dump(),
          .common = std::move(tensors.common),
          .own = std::move(tensors.own)};
}

// Brings this rank to the furthest point: a rank that was there already undoes the step that failed.
void ElasticRun::restore(SharedState& shared, const ProcessGroupPtr& group) {
  clear_gradients();
  if (shared.is_received) {
    check_fits(shared.state);
    load({.common = shared.state.common, .own = shared.state.own});
    point_ = read_point(shared, group->getSize());
    return;
  }
  if (point_->is_copied) {
    load(copies_);
  }
  if (point_->reducer) {
    point_->reducer->hook.world_size = group->getSize();  // This rank keeps its state, whatever its number is now.
  }
}

ElasticRun::Point ElasticRun::read_point(const SharedState& shared, int64_t world_size) {
  Point point;
  const json values = files::parse_json(shared.state.values, kRecovery);
  try {
    point.step = values.at("step").get<int64_t>();
    point.is_over = values.at("is_over").get<bool>();
    if (values.contains("buckets")) {
      point.reducer = ReducerState{.buckets = values.at("buckets").get<BucketNames>(),
                                   .reductions = values.at("reductions").get<int64_t>(),
                                   .hook = {.world_size = world_size, .states = {}, .first = {}}};
      point.reducer->hook.first = hooks::part_of(shared.state.own, kHook);
    }
  } catch (const json::exception& error) {
    NARROWCAST_CHECK_INPUT(false, kRecovery, ": the values of rank ", shared.first_source, ": ",
                           files::problem_with(error));
  }
  NARROWCAST_CHECK_INPUT(point.step >= 0, kRecovery, ": the values of rank ", shared.first_source, ": step ",
                         point.step);
  return point;
}

// A new process has no gradients. The others' are of the step that failed, and must not be added to those of the next.
void ElasticRun::clear_gradients() const {
  for (const auto& [name, part] : state_.tensors_) {
    if (part.tensor.grad().defined()) part.tensor.mutable_grad().reset();
  }
}

// Nothing is overwritten unless all tensors fit.
void ElasticRun::check_fits(const RankState& received) const {
  for (const auto& [name, part] : state_.tensors_) {
    const auto found = received.common.find(kTensor + name);
    NARROWCAST_CHECK_INPUT(found != received.common.end() && found->second.scalar_type() == part.dtype &&
                               found->second.sizes() == part.sizes,
                           kRecovery, ": another rank has sent no state ", in_quotes(name), " of ", part.dtype, " ",
                           at::IntArrayRef(part.sizes));
  }
}

void ElasticRun::load(const Values& values) {
  const at::NoGradGuard no_gradients;
  for (const auto& [name, part] : state_.tensors_) part.tensor.copy_(values.common.at(kTensor + name));
  size_t number = 0;
  for (const auto& [name, part] : state_.saved_) {
    const TensorMap& tensors = part.is_equal_on_all_ranks ? values.common : values.own;
    part.load(cloned(hooks::part_of(tensors, part_prefix(number++))));
  }
}

}  // namespace narrowcast::recovery

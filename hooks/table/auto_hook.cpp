#include "hooks/table/auto_hook.h"

#include <ATen/ATen.h>

#include <algorithm>
#include <chrono>
#include <cmath>
#include <utility>

#include <narrowcast/errors.h>
#include "hooks/row/execution.h"
#include "hooks/row/hook_options.h"
#include "hooks/row/levels.h"
#include "hooks/table/hook_table.h"
#include "ops/comm/groups/group.h"
#include "ops/common/backend_errors.h"

namespace narrowcast::hooks {
namespace {

using node::NodeLayout;
using Group = c10::intrusive_ptr<c10d::ProcessGroup>;

constexpr const char* kCost = "cost";  // Seconds per all-reduce and per element, in total and on the link.
constexpr const char* kAgreeing = "agreeing on the link of the hook auto";
constexpr const char* kGiven = "given";  // Gbit/s and microseconds of the options; 0 if not given.
constexpr const char* kCountOfChanges = "changes";
constexpr const char* kOnGpus = "on_gpus";  // Only there if the decision was made on GPUs.
constexpr const char *kLinkBetweenNodes = "link", *kLinkWithinNode = "link_within_node";
// The link counts as unchanged while measured / predicted time lies between these.
constexpr double kMostFactor = 4.0 / 3, kLeastFactor = 2.0 / 3;
// Limits of one change. A link can seem faster because other costs were overestimated.
constexpr double kMostChange = 64, kLeastChange = 1.0 / 8;

double steady_now() {
  return std::chrono::duration<double>(std::chrono::steady_clock::now().time_since_epoch()).count();
}

std::string key_of(const std::string& candidate, const std::string& name) { return candidate + "." + name; }

// Checks for `count` values of float64, finite and >= 0.
std::vector<double> numbers_of(const at::Tensor& tensor, const std::string& name, int64_t count) {
  NARROWCAST_CHECK_INPUT(tensor.scalar_type() == at::kDouble && tensor.numel() == count &&
                             (tensor >= 0).logical_and(tensor.isfinite()).all().item<bool>(),
                         "the hook's state '", name, "' is not ", count, " numbers of at least 0");
  const at::Tensor flat = tensor.cpu().contiguous();
  return {flat.const_data_ptr<double>(), flat.const_data_ptr<double>() + count};
}

at::Tensor given_tensor(const WireOptions& wire) {
  return at::tensor({wire.link_gbit.value_or(0), wire.link_us.value_or(0)}, at::kDouble);
}

// The maximum over the ranks, the same on all of them.
ExchangeCost agreed(const Group& group, const ExchangeCost& cost) {
  const auto most = collectives::greatest_of_ranks(group, "measuring the hook auto's candidates",
                                                   {cost.seconds, cost.seconds_per_element});
  return {most[0], most[1]};
}

ExchangeCost operator+(const ExchangeCost& a, const ExchangeCost& b) {
  return {a.seconds + b.seconds, a.seconds_per_element + b.seconds_per_element};
}

ExchangeCost lesser_parts(const ExchangeCost& a, const ExchangeCost& b) {
  return {std::min(a.seconds, b.seconds), std::min(a.seconds_per_element, b.seconds_per_element)};
}

// Where all-reduces are measured. Called before anything is sent.
std::optional<at::Device> checked_device(const HookOptions& options, const AutoMeasures& measures) {
  const std::optional<at::Device> device = measures.device ? measures.device : measured_device(options);
  if (!device) {
    check_unmeasured(options.wire);
  }
  return device;
}

std::unique_ptr<ExchangeWatch> watch_on(const std::optional<at::Device>& device, const std::function<double()>& now) {
  return now || !device || device->is_cpu() ? watch_by_clock(now ? now : steady_now) : watch_streams(*device);
}

}  // namespace

AutoHook::AutoHook(const HookRow& row, const HookOptions& options, const AutoMeasures& measures)
    : TableHook(row),
      options_(options),
      device_(checked_device(options, measures)),
      nodes_(find_hook_nodes(options)),
      window_(measures.window),
      candidates_(auto_candidates(options.wire, nodes_->layout)),
      turns_(HookTurns::of(options.process_group)),
      watch_(watch_on(device_, measures.now)) {
  if (!device_) {
    candidates_.resize(1);
  }
  if (candidates_.size() > 1) {
    link_ = find_hook_link(options_, nodes_->layout);
  }
  for (AutoCandidate& candidate : candidates_) {
    if (candidates_.size() > 1) {
      candidate.cost = cost_of(candidate.name, measures);
      const auto between = link_.between_nodes.value_or(collectives::LinkCost{});
      candidate.sent = lesser_parts(candidate.cost, cost_on_link(candidate.name, options_, nodes_->layout, between));
    }
    const HookRow& taken = hook_row(candidate.name);
    hooks_.push_back(taken.make(taken, candidate_options(candidate.name, options_)));
  }
}

AutoHook::~AutoHook() = default;

ExchangeCost AutoHook::cost_of(const std::string& name, const AutoMeasures& measures) const {
  if (measures.cost) {
    return measures.cost(name);
  }
  const HookOptions own = candidate_options(name, options_);
  if (is_set(options_.wire, OptionKind::kLink) && link_.between_nodes) {
    return cost_on_link(name, options_, nodes_->layout, *link_.between_nodes) +
           agreed(options_.process_group, local_cost(name, options_, nodes_->layout, *device_));
  }
  const HookRow& candidate = hook_row(name);
  const auto hook = candidate.make(candidate, own);
  const ExchangeCost measured = measure_exchange(*hook, options_.process_group, CostMeasurement::on(*device_));
  return link_.between_nodes
             ? not_faster_than_link(measured, cost_on_link(name, options_, nodes_->layout, *link_.between_nodes))
             : measured;
}

std::string AutoHook::nodes() const { return nodes_text(*nodes_); }

std::string AutoHook::decision() const {
  if (options_.process_group->getSize() == 1) {
    return "allreduce: one rank has nothing to send";
  }
  if (!device_) {
    return kUnmeasured;
  }
  const std::string link = link_text(link_, nodes_->layout);
  const bool is_given = is_set(options_.wire, OptionKind::kLink) && link_.between_nodes;
  const std::string source = !is_given ? "measured" : gives_link(options_.wire) ? "given" : "given and measured";
  const std::string again = changes_ == 0 ? "" : "; decided again " + std::to_string(changes_) + " times";
  const std::string resumed = is_resumed_ ? "; as decided before the training resumed" : "";
  return choice_text(candidates_) + "; link " + link + ", " + source + resumed + again;
}

std::optional<double> AutoHook::predicted_seconds(int64_t numel) const {
  if (candidates_.size() == 1) {
    return std::nullopt;  // Nothing was measured.
  }
  return candidates_[choose_candidate(candidates_, numel)].cost.of(numel);
}

c10::intrusive_ptr<c10::ivalue::Future> AutoHook::runHook(c10d::GradBucket& bucket) {
  const auto index = static_cast<int64_t>(bucket.getIndex());
  const bool is_first = index <= std::exchange(last_bucket_, index);
  if (candidates_.size() == 1) {
    return run_inside(*hooks_[0], bucket);
  }
  check_dense(name(), bucket);  // Most candidates average only dense gradients.
  if (is_first && watches()) {
    begin_step();
  }
  const at::Tensor& buffer = bucket.getBuffer();
  const size_t choice = choose_candidate(candidates_, buffer.numel());
  const auto run = [&] { return run_inside(*hooks_[choice], bucket); };
  if (!watches()) {
    return turns_->run(*hooks_[choice], buffer, run);
  }
  const int64_t numel = buffer.numel();
  const PredictedExchanges predicted{candidates_[choice].cost.of(numel), candidates_[choice].sent.of(numel), 1};
  step_ += predicted;
  const int64_t exchange = watch_->begin(predicted, buffer.device());
  return turns_->run(*hooks_[choice], buffer, run)
      ->then(
          [watch = watch_, exchange](c10::ivalue::Future& done) {
            if (done.hasError()) {
              watch->give_up(exchange);
              std::rethrow_exception(done.exception_ptr());
            }
            watch->end(exchange);
            return done.value();
          },
          c10::TensorType::get());
}

// Called before the first bucket, on all ranks in the same step. On the CPU the agreement that was started in the step
// before is complete: every rank started it before its buckets, which have been averaged since. On a GPU the bucket's
// futures do not tell, so the agreement is read a window later, when no host has to wait for it.
void AutoHook::begin_step() {
  watch_->end_step(step_);
  step_ = {};
  const bool ends_window = ++steps_ % window_ == 0;
  if (agreement_ && (device_->is_cpu() || ends_window)) {
    const Agreement done = *std::exchange(agreement_, std::nullopt);
    with_backend_errors(options_.process_group->getRank(), kAgreeing, [&] { done.work->wait(); });
    take_agreed(done.factor.item<double>());
  }
  if (ends_window) agree_on(watch_->take_least());
}

void AutoHook::agree_on(double factor) {
  const Group& group = options_.process_group;
  const at::Device device = collectives::moves_cpu_tensors(group) ? at::kCPU : *device_;
  Agreement agreement{.factor = at::full({1}, factor, at::dtype(at::kDouble).device(device)), .work = nullptr};
  std::vector<at::Tensor> tensors{agreement.factor};
  c10d::AllreduceOptions least;
  least.reduceOp = c10d::ReduceOp::MIN;
  with_backend_errors(group->getRank(), kAgreeing, [&] { agreement.work = group->allreduce(tensors, least); });
  agreement_ = std::move(agreement);
}

void AutoHook::take_agreed(double factor) {
  if (factor == ExchangeWatch::kNothingSeen || (factor <= kMostFactor && factor >= kLeastFactor)) {
    return;
  }
  const double change = std::clamp(factor, kLeastChange, kMostChange);
  candidates_ = on_slower_link(std::move(candidates_), change);
  link_.between_nodes->seconds_per_hop *= change;
  link_.between_nodes->seconds_per_byte *= change;
  watch_->take_least();  // Later observations were compared with the former predictions.
  ++changes_;
}

HookState AutoHook::state(const std::vector<NamedParameter>& parameters) const {
  HookState state = CommHook::state(parameters);
  state.emplace(kGiven, given_tensor(options_.wire));
  state.emplace(kCountOfChanges, int_tensor(changes_));
  if (is_on_gpus()) state.emplace(kOnGpus, int_tensor(1));
  add_link(state, kLinkBetweenNodes, link_.between_nodes);
  add_link(state, kLinkWithinNode, link_.within_node);
  add_nodes(state, nodes_->layout);
  for (size_t i = 0; i < candidates_.size(); ++i) {
    const AutoCandidate& candidate = candidates_[i];
    state.emplace(key_of(candidate.name, kCost),
                  at::tensor({candidate.cost.seconds, candidate.cost.seconds_per_element, candidate.sent.seconds,
                              candidate.sent.seconds_per_element},
                             at::kDouble));
    for (auto& [name, tensor] : hooks_[i]->state(parameters)) state.emplace(key_of(candidate.name, name), tensor);
  }
  return state;
}

// All candidates have the same nodes. Predictions are of whole averages, so the link is not watched meanwhile.
std::vector<int64_t> AutoHook::average_shards(std::optional<ShardRounding> rounding) {
  for (const auto& hook : hooks_) hook->average_shards(rounding);
  averages_shards_ = rounding.has_value();
  watch_->take_least();
  return nodes_->layout.node_of_rank();
}

void AutoHook::load_state(const FormerRanks& saved, const std::vector<NamedParameter>& parameters) {
  CommHook::load_state(saved, parameters);
  for (size_t i = 0; i < candidates_.size(); ++i) {
    const FormerRanks part = part_of(saved, key_of(candidates_[i].name, ""));
    if (!part.own().empty()) {
      hooks_[i]->load_state(part, parameters);
    }
  }
  if (saved_nodes(saved) == nodes_->layout) {  // Costs depend on a rank's share of its node's NIC.
    resume_decision(saved.own());
  }
}

// If the kind of device, the candidates or the given options differ, the current decision stays.
void AutoHook::resume_decision(const HookState& saved) {
  if (saved.contains(kOnGpus) != is_on_gpus()) {
    return;
  }
  std::vector<AutoCandidate> resumed = candidates_;
  for (AutoCandidate& candidate : resumed) {
    const std::string key = key_of(candidate.name, kCost);
    const auto found = saved.find(key);
    if (found == saved.end()) {
      return;
    }
    const std::vector<double> numbers = numbers_of(found->second, key, 4);
    candidate.cost = {numbers[0], numbers[1]};
    candidate.sent = {numbers[2], numbers[3]};
  }
  const auto given = saved.find(kGiven);
  if (given != saved.end() &&
      numbers_of(given->second, kGiven, 2) == numbers_of(given_tensor(options_.wire), kGiven, 2)) {
    candidates_ = std::move(resumed);
    resume_link(saved);
    is_resumed_ = true;
  }
}

// State of older versions has no link and no count of changes.
void AutoHook::resume_link(const HookState& saved) {
  changes_ = saved.contains(kCountOfChanges) ? int_of(saved, kCountOfChanges) : 0;
  if (link_.between_nodes) {
    link_.between_nodes = saved_link(saved, kLinkBetweenNodes).value_or(*link_.between_nodes);
  }
  if (link_.within_node) {
    link_.within_node = saved_link(saved, kLinkWithinNode).value_or(*link_.within_node);
  }
}

namespace {

// The maximum of each part, element by element, because any of the candidates may have been chosen.
ErrorTerms greater_terms(const ErrorTerms& a, const ErrorTerms& b) {
  return {at::maximum(a.float32, b.float32), at::maximum(a.first_hop, b.first_hop),
          at::maximum(a.second_hop, b.second_hop)};
}

int64_t most_payload(const GradientSizes& gradients, const NodeLayout& layout, const HookOptions& options) {
  int64_t most = 0;
  for (const AutoCandidate& candidate : auto_candidates(options.wire, layout)) {
    const HookOptions own = candidate_options(candidate.name, options);
    most = std::max(most, hook_row(candidate.name).payload_bytes(gradients, layout, own));
  }
  return most;
}

ErrorTerms greatest_terms(const SentBucket& bucket, const NodeLayout& layout, const HookOptions& options) {
  std::optional<ErrorTerms> greatest;
  for (const AutoCandidate& candidate : auto_candidates(options.wire, layout)) {
    const HookOptions own = candidate_options(candidate.name, options);
    ErrorTerms terms = hook_row(candidate.name).error_terms(bucket, layout, own);
    if (options.wire.error_feedback && !own.wire.error_feedback) {  // Its rounding error is never fed back.
      terms.float32 += terms.first_hop;
      terms.first_hop.zero_();
    }
    greatest = greatest ? greater_terms(*greatest, terms) : terms;
  }
  return *greatest;
}

}  // namespace

void check_unmeasured(const WireOptions& wire) {
  const bool asks_for_one_level = wire.levels == Levels::kOne || wire.node_size == 1;
  for (const NamedOption& option : named_options({.wire = wire})) {
    const bool is_kept = option.kind == OptionKind::kLevels && asks_for_one_level;
    TORCH_CHECK_VALUE(!option.is_given || is_kept, option.name, ": ", text_of(option.value),
                      " has no effect on GPUs without NCCL, where the hook auto always uses allreduce");
  }
}

HookRow auto_row() {
  return {
      .name = "auto",
      .make = [](const HookRow& row, const HookOptions& options) { return std::make_unique<AutoHook>(row, options); },
      .payload_bytes = most_payload,
      .error_terms = greatest_terms,
      .chooses = true,
      .options = {OptionKind::kRounding, OptionKind::kErrorFeedback, OptionKind::kExemption, OptionKind::kLevels,
                  OptionKind::kLink, OptionKind::kConnections, OptionKind::kChoice}};
}

}  // namespace narrowcast::hooks

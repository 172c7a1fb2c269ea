#include <narrowcast/gradient_reducer.h>

#include <ATen/core/grad_mode.h>
#include <c10/util/Exception.h>
#include <torch/csrc/autograd/engine.h>

#include <algorithm>
#include <torch/csrc/distributed/c10d/reducer.hpp>
#include <utility>

#include <narrowcast/consensus.h>
#include <narrowcast/hooks.h>
#include <narrowcast/network_errors.h>
#include "hooks/table/hook_table.h"
#include "ops/comm/groups/group.h"
#include "ops/common/backend_timeout.h"
#include "trainer/base/files/names.h"
#include "trainer/ddp/backends/group_backend.h"
#include "trainer/ddp/module/broadcast.h"
#include "trainer/ddp/options/option_values.h"
#include "trainer/ddp/reducer/backward_watch.h"
#include "trainer/ddp/reducer/block_alignment.h"
#include "trainer/ddp/reducer/bucket_chooser.h"
#include "trainer/ddp/reducer/bucket_exchanges.h"
#include "trainer/ddp/reducer/parameter_watch.h"
#include "trainer/ddp/reducer/pass_check.h"
#include "trainer/ddp/reducer/reducer.h"

namespace narrowcast {
namespace {

constexpr const char* kFailedPass =
    "the last backward pass did not end, because an exception passed through it: this DistributedDataParallel "
    "cannot be used any more; destroy it on all ranks and make another one";

// The options with the device of the gradients. check_trainable refuses parameters on several devices.
DdpOptions checked_options(DdpOptions options, const ModuleState& state, const ProcessGroupPtr& group) {
  options.validate();
  const std::vector<NamedTensor> trainable = state.trainable();
  hooks::HookOptions hook_options = options.hook_options();
  if (!hook_options.device && !trainable.empty() &&
      collectives::moves_tensors_on(trainable[0].tensor.device().type(), group)) {
    hook_options.device = trainable[0].tensor.device().type();
    options.hook_options(std::move(hook_options));
  }
  return options;
}

int64_t gradient_bytes(const std::vector<NamedTensor>& trainable) {
  int64_t bytes = 0;
  for (const NamedTensor& parameter : trainable) bytes += static_cast<int64_t>(parameter.tensor.nbytes());
  return bytes;
}

}  // namespace

GradientReducer::GradientReducer(ModuleState state, ProcessGroupPtr group, const DdpOptions& options)
    : state_(std::move(state)),
      group_(checked_group(std::move(group))),
      options_(checked_options(options, state_, group_)),
      trainable_(state_.trainable()),
      static_graph_(std::make_shared<StaticGraph>()) {
  compare_between_ranks();
  c10::OptionalDeviceGuard on_gradients;  // Hooks measure there.
  if (!trainable_.empty()) on_gradients.reset_device(trainable_[0].tensor.device());
  std::shared_ptr<hooks::CommHook> hook =
      with_network_errors(group_->getRank(), "making the hook " + options_.hook(),
                          [&] { return hooks::create_comm_hook(options_.hook(), options_.hook_options(group_)); });
  check_trainable(state_, group_);
  if (options_.init_sync()) {
    broadcast(state_.parameters, 0);
    broadcast(state_.buffers, 0);
  }
  parameters_ = std::make_unique<ParameterWatch>(state_);
  passes_ = std::make_unique<PassCheck>(trainable_, group_);
  backward_ = std::make_unique<BackwardWatch>(tensors_of(trainable_));
  const DdpOptions first = with_first_bucket_size(options_, tensors_of(trainable_), group_->getSize());
  if (chooses_bucket_size(options_, tensors_of(trainable_), group_->getSize())) {
    chooser_ = std::make_unique<BucketChooser>(trainable_, group_, options_);
  }
  aligns_ = group_->getSize() > 1 && rounds_in_blocks(options_);
  const bool will_rebuild = options_.static_graph() || !options_.find_unused_parameters();
  if (aligns_ && will_rebuild) {
    first_pass_ = std::make_unique<GradientTimes>(tensors_of(trainable_));
  }
  reducer_ = make_reducer(trainable_, group_, first, aligned(first_buckets(trainable_, first)));
  if (options_.static_graph()) {
    reducer_->set_static_graph();
  }
  if (hook != nullptr) {
    use_hook(std::move(hook), /*limit=*/std::nullopt);
  }
}

GradientReducer::~GradientReducer() {
  if (exchanges_ != nullptr) {
    exchanges_->drain();
  }
}

void GradientReducer::compare_between_ranks() const {
  std::vector<NamedValue> values = describe(options_);
  for (NamedValue& value : describe(state_)) {
    values.push_back(std::move(value));
  }
  check_equal_on_all_ranks(group_, values);
}

void GradientReducer::broadcast(const std::vector<NamedTensor>& tensors, int64_t from) const {
  broadcast_from_rank(from, group_, tensors_of(tensors), "broadcast of parameters and buffers");
}

BucketIndices GradientReducer::aligned(BucketIndices buckets) const {
  return aligns_ ? aligned_to_blocks(std::move(buckets), tensors_of(trainable_)) : std::move(buckets);
}

void GradientReducer::before_forward() {
  if (chooser_ != nullptr) {
    chooser_->end_pass();
  }
  if (at::GradMode::is_enabled()) {
    begin_pass();
    prepare_for_forward();
    with_network_errors(group_->getRank(), "rebuilding buckets", [&] { rebuild(); });
  }
  sync_buffers();
}

void GradientReducer::sync_buffers() {
  if (std::exchange(buffers_due_, false)) {
    broadcast(state_.buffers, buffers_from_);
  }
}

// Ranks that average in smaller groups, or not at all, must not wait for all others to learn why this rank fails. The
// others must learn it before they wait for this rank in a collective of c10d, such as the rebuilding of the Reducer.
void GradientReducer::begin_pass() {
  passes_->count();
  check_announced_mode();
  const std::string difference = synchronise_ ? parameters_->difference() : "";
  if (keeps_replicas_equal()) {
    if (!difference.empty()) {
      passes_->refuse(difference);
    } else if (compares_pass()) {
      passes_->compare();
    }
  }
  TORCH_CHECK_VALUE(difference.empty(), difference);
}

// The Reducer learns a static graph by counting how often each parameter is reached until its first reduction. Passes
// inside no_sync before that would be counted as well, so a Reducer that has seen some is replaced by a new one.
void GradientReducer::prepare_for_forward() {
  TORCH_CHECK_VALUE(!static_graph_->is_learning, kFailedPass);
  if (!synchronise_) {
    static_graph_->has_local_passes = is_first_static_step();
    return;
  }
  if (std::exchange(static_graph_->has_local_passes, false)) {
    const BucketIndices buckets = bucket_indices(bucket_names(*reducer_, trainable_), trainable_);
    replace_reducer(with_first_bucket_size(options_, tensors_of(trainable_), group_->getSize()), buckets);
    reducer_->set_static_graph();
  }
  reducer_->prepare_for_forward();
}

// The memory of the old buckets is free before the new Reducer allocates its own.
void GradientReducer::replace_reducer(const DdpOptions& sized, const BucketIndices& buckets) {
  reducer_.reset();
  reducer_ = make_reducer(trainable_, group_, sized, buckets);
  if (exchanges_ != nullptr) {
    exchanges_->register_with(*reducer_);
  }
}

// When a static graph's Reducer rebuilds its buckets, it has not used them yet, so it can get other buckets. No other
// rebuild is due then.
void GradientReducer::rebuild() {
  const bool rebuilt = rebuild_reducer();
  if (rebuilt && first_pass_ != nullptr) {
    align_rebuilt_buckets();
  }
  if (chooser_ != nullptr && (options_.static_graph() ? rebuilt : chooser_->is_due())) {
    choose_buckets();
  }
  if (rebuilt && buckets_to_keep_.has_value()) {
    reducer_->initialize_buckets(*buckets_to_keep_);
  }
}

// The Reducer does not report its order before it has used it. A forward pass without gradients may have come between
// the watched pass and this one.
void GradientReducer::align_rebuilt_buckets() {
  const std::vector<at::Tensor> parameters = tensors_of(trainable_);
  first_pass_->end_pass();
  const DdpOptions sized = with_first_bucket_size(options_, parameters, group_->getSize());
  const std::vector<size_t> order = ready_order(all_reduce_max(group_, first_pass_->seconds()));
  buckets_to_keep_ = aligned(fill_buckets(parameters, order, sized));
  first_pass_.reset();
}

// A Reducer that has used its rebuilt buckets remembers which parameters were in each, and would pass them to the hook.
// So a new Reducer replaces it, and gets the hook with its state. Test buckets use the memory of the old ones before.
void GradientReducer::choose_buckets() {
  const DdpOptions former = with_first_bucket_size(options_, tensors_of(trainable_), group_->getSize());
  const bool replaces = !options_.static_graph();  // Else the Reducer must not be asked for its buckets yet.
  const BucketNames names = replaces ? bucket_names(*reducer_, trainable_) : BucketNames();
  if (replaces) reducer_.reset();
  try {
    BucketChooser::Result result = chooser_->choose(hook_.get(), shard_rounding_);
    stop_choosing();
    bucket_choice_ = std::move(result.choice);
    buckets_to_keep_ = aligned(std::move(result.buckets));
  } catch (...) {
    if (replaces) replace_reducer(former, bucket_indices(names, trainable_));
    throw;
  }
  if (replaces) {
    replace_reducer(DdpOptions(options_).bucket_cap_mb(bucket_choice_->size().cap_mb), *buckets_to_keep_);
  }
}

void GradientReducer::stop_choosing() {
  chooser_.reset();
  if (exchanges_ != nullptr) exchanges_->stop_holding();
}

// The Reducer notices here that it still waits for gradients, and reports it in terms of PyTorch's Python interface.
bool GradientReducer::rebuild_reducer() {
  try {
    return reducer_->rebuild_buckets();
  } catch (const c10::Error& error) {
    TORCH_CHECK_VALUE(!backward_->has_not_ended(), kFailedPass);
    const std::string message = error.what_without_backtrace();
    TORCH_CHECK_VALUE(!message.starts_with("Expected to have finished reduction"), unused_parameters(),
                      " got no gradient in the last backward pass: let the loss use all outputs of the module and the "
                      "module all its parameters, or set find_unused_parameters; with static_graph every step must use "
                      "the same parameters");
    throw;
  }
}

// The parameters that the last backward pass should have reached.
std::string GradientReducer::unused_parameters() const {
  std::vector<std::string> names;
  for (const size_t index : backward_->unreached()) names.push_back(trainable_[index].name);
  return names.empty() ? "some parameters" : c10::str("parameters ", describe_names(names));
}

bool GradientReducer::settle_buckets() {
  with_network_errors(group_->getRank(), "rebuilding buckets", [&] {
    if (chooser_ != nullptr) {
      chooser_->end_pass();
    }
    rebuild();
    if (chooser_ != nullptr && chooser_->can_choose() && !options_.static_graph()) {
      choose_buckets();
    }
  });
  sync_buffers();
  return buckets_are_settled();
}

bool GradientReducer::buckets_are_settled() const {
  return chooser_ == nullptr && (buckets_to_keep_.has_value() || !reducer_->should_rebuild_buckets());
}

ReducerState GradientReducer::state() const {
  return {.buckets = bucket_names(*reducer_, trainable_),
          .reductions = backward_->count(),
          .hook = {.world_size = group_->getSize(),
                   .states = {hook_ == nullptr ? hooks::HookState{} : hook_->state(trainable_)},
                   .first = {}}};
}

void GradientReducer::load_state(const ReducerState& saved) {
  BucketIndices buckets = bucket_indices(saved.buckets, trainable_);
  if (hook_ != nullptr) {
    hook_->load_state(saved.hook, trainable_);
  }
  backward_->set_count(saved.reductions);
  if (chooser_ != nullptr && saved.hook.world_size != group_->getSize()) {
    return;  // The size chosen for another world may not suit this one.
  }
  stop_choosing();
  first_pass_.reset();
  reducer_->initialize_buckets(buckets);
  buckets_to_keep_ = std::move(buckets);
}

bool GradientReducer::is_first_static_step() const { return options_.static_graph() && !static_graph_->is_known; }

bool GradientReducer::wants_outputs() const {
  return at::GradMode::is_enabled() && synchronise_ && (options_.find_unused_parameters() || is_first_static_step());
}

std::vector<at::Tensor> GradientReducer::after_forward(std::vector<at::Tensor> outputs) {
  const bool reduces = at::GradMode::is_enabled() && synchronise_;
  buffers_due_ = reduces && options_.broadcast_buffers() && keeps_replicas_equal();
  if (at::GradMode::is_enabled()) end_announced_pass();
  if (!reduces) {
    return outputs;
  }
  if (wants_outputs()) check_contains_parameters(outputs);
  backward_->arm();
  if (keeps_replicas_equal()) {
    passes_->arm();
  }
  if (chooser_ != nullptr) {
    chooser_->begin_pass();
  }
  if (first_pass_ != nullptr) {
    first_pass_->begin_pass();
  }
  std::vector<at::Tensor> roots;  // The Reducer searches for unused parameters from here.
  if (options_.find_unused_parameters()) {
    std::copy_if(outputs.begin(), outputs.end(), std::back_inserter(roots),
                 [](const at::Tensor& output) { return output.defined(); });
  }
  reducer_->prepare_for_backward(roots);
  if (!wants_outputs()) return outputs;
  return pass_through_sink(outputs, is_first_static_step() ? static_reduction() : nullptr);
}

// The Reducer learns a static graph by watching the first backward pass, so it can reduce only when that pass has
// ended. A graph that outlives this object does not keep any part of it alive.
std::function<void()> GradientReducer::static_reduction() const {
  return [graph = static_graph_, weak_reducer = std::weak_ptr<c10d::Reducer>(reducer_),
          weak_exchanges = std::weak_ptr<BucketExchanges>(exchanges_),
          weak_watch = std::weak_ptr<BackwardWatch>(backward_)] {
    const auto reducer = weak_reducer.lock();
    if (reducer == nullptr || graph->is_known) {
      return;
    }
    graph->is_learning = true;
    const auto reduce = [graph, reducer, exchanges = weak_exchanges.lock(), watch = weak_watch.lock()] {
      if (!std::exchange(graph->is_known, true)) {
        exchanges != nullptr ? exchanges->reduce_delayed(*reducer) : reducer->delay_all_reduce();
        watch->expect_reached();
        graph->is_learning = false;
      }
    };
    torch::autograd::Engine::get_default_engine().queue_callback(reduce);
  };
}

void GradientReducer::register_comm_hook(std::unique_ptr<hooks::CommHook> hook) {
  TORCH_CHECK_VALUE(hook != nullptr, "hook must not be null");
  TORCH_CHECK_VALUE(options_.bucket_cap_mb().has_value(), "bucket_cap_mb: auto cannot measure hook ", hook->name(),
                    ", which is a custom hook; give the size of buckets");
  use_hook(std::move(hook), timeout_of(*group_->getBackend(trainable_[0].tensor.device().type())));
}

// The library's hooks end every all-reduce at the group's time-out, and need no limit.
void GradientReducer::use_hook(std::shared_ptr<hooks::CommHook> hook, std::optional<std::chrono::milliseconds> limit) {
  const BucketExchanges::Options exchange{group_->getRank(), limit, passes_->bucket_check()};
  auto exchanges = std::make_shared<BucketExchanges>(hook, exchange);
  if (chooser_ != nullptr) exchanges->hold_until_last();  // It measures backward passes.
  exchanges->register_with(*reducer_);
  exchanges_ = std::move(exchanges);
  hook_ = std::move(hook);
}

std::string GradientReducer::hook_name() const {
  return hook_ == nullptr ? hooks::kNoHook : std::string(hook_->name());
}

void GradientReducer::rescale_hook_state(double factor) {
  if (hook_ != nullptr) hook_->rescale_state(factor);
}

int64_t GradientReducer::payload_bytes_sent() const {
  return hook_ != nullptr ? hook_->payload_bytes_sent() : payload_bytes_without_hook();
}

int64_t GradientReducer::payload_bytes_without_hook() const {
  return backward_->count() * hooks::ring_all_reduce_bytes(gradient_bytes(trainable_), group_->getSize());
}

std::optional<double> GradientReducer::compression() const {
  if (hook_ != nullptr) {
    return hook_->compression();
  }
  if (payload_bytes_without_hook() == 0) return std::nullopt;
  double float32_bytes = 0;
  for (const NamedTensor& parameter : trainable_) float32_bytes += static_cast<double>(4 * parameter.tensor.numel());
  return float32_bytes / static_cast<double>(gradient_bytes(trainable_));
}

double GradientReducer::take_waited_seconds() { return passes_->take_waited_seconds(); }

std::vector<int64_t> GradientReducer::bucket_bytes() const {
  std::vector<int64_t> sizes;
  for (const c10d::GradBucket& bucket : reducer_->get_grad_buckets(/*return_zero_tensors=*/false)) {
    sizes.push_back(static_cast<int64_t>(bucket.getBuffer().nbytes()));
  }
  return sizes;
}

}  // namespace narrowcast

#include "trainer/train/job/plan.h"

#include <absl/strings/str_format.h>

#include <algorithm>
#include <memory>
#include <optional>
#include <string_view>
#include <type_traits>
#include <utility>
#include <variant>
#include <vector>

#include <narrowcast/hooks.h>
#include <narrowcast/network_errors.h>
#include <narrowcast/wire_format.h>
#include "hooks/row/bucket.h"
#include "hooks/row/levels.h"
#include "hooks/table/auto_choice.h"
#include "hooks/table/hook_table.h"
#include "hooks/table/post_local_sgd.h"
#include "ops/comm/connections/group/connections.h"
#include "trainer/base/files/json.h"
#include "trainer/base/network/job_network.h"
#include "trainer/ddp/outer/outer_arguments.h"
#include "trainer/ddp/quorum/round_message.h"
#include "trainer/ddp/reducer/bucket_chooser.h"
#include "trainer/train/job/optimizer_shards.h"
#include "trainer/train/job/train_job.h"
#include "trainer/train/optimization/optimizer.h"
#include "trainer/train/options/plan_entries.h"

namespace narrowcast::job {
namespace {

constexpr const char* kBatchNormBuffer = "running_mean";
constexpr const char* kUnknownRounds = "unknown: clocks decide how many steps a round has";
constexpr const char* kUnknown = "unknown until ranks meet";

hooks::GradientSizes gradient_sizes(const models::Model& model) {
  hooks::GradientSizes sizes;
  for (const at::Tensor& parameter : training::trained_parameters(model)) {
    sizes.numel += parameter.numel();
    sizes.shapes.push_back(parameter.sizes().vec());
    sizes.one_dimensional += hooks::is_one_dimensional(parameter) ? parameter.numel() : 0;
  }
  return sizes;
}

int64_t largest_parameter_bytes(const models::Model& model) {
  int64_t largest = 0;
  for (const at::Tensor& parameter : training::trained_parameters(model)) {
    largest = std::max(largest, parameter.numel() * static_cast<int64_t>(sizeof(float)));
  }
  return largest;
}

void add_model(nlohmann::json& plan, const JobInputs& inputs) {
  plan["model_options"] = inputs.model->options();
  int64_t parameters = 0;
  for (const at::Tensor& parameter : inputs.model->parameters()) {
    parameters += parameter.numel();
  }
  plan["parameters"] = parameters;
  if (inputs.imported != nullptr) {
    plan["model_hash"] = hash_text(*inputs.file_hash);
    const std::optional<models::Loss>& loss = inputs.imported->loss();
    plan["loss"] = loss ? to_string(*loss) : "the module's own";
    if (inputs.unit == "tokens") plan["context"] = inputs.units_per_sample;
  }
  if (inputs.init_hash.has_value()) {
    plan["init_from_hash"] = hash_text(*inputs.init_hash);
    if (inputs.init_context.has_value()) plan["init_from_context"] = *inputs.init_context;
  }
}

// Adds the options that have a value and are accepted, under the names of their flags.
template <class Predicate>
void add_options(nlohmann::json& plan, const std::vector<hooks::NamedOption>& options, const Predicate& is_taken) {
  for (const hooks::NamedOption& option : options) {
    if (!is_taken(option.kind)) continue;
    const auto add = [&](const auto& value) {
      if constexpr (!std::is_same_v<decltype(value), const std::monostate&>) plan[option.name] = value;
    };
    if (option.kind == hooks::OptionKind::kRounding) {
      add(option.is_given);  // The seed is the training's.
    } else {
      std::visit(add, option.value);
    }
  }
}

// Adds the synchronisation between groups, except its bytes.
void add_outer(nlohmann::json& plan, const OuterOptions& outer) {
  add_options(plan, outer.named(), [](hooks::OptionKind) { return true; });
  plan["replicas"] =
      c10::str("equal at the end", outer.warmup_steps() > 0 ? " and in the warm-up" : "",
               outer.fragments() == 1 && outer.mix() == 0 && !outer.quorum() ? ", and right after each exchange" : "",
               "; else equal within a local group");
}

// The options of hierarchical averaging, of gradients or of parameters. Null if the hook does not support it.
const hooks::WireOptions* wire_of(const TrainJob& job) {
  if (job.outer.has_value()) {
    return &job.outer->wire();
  }
  return hooks::hook_row(job.ddp.hook()).takes(hooks::OptionKind::kLevels) ? &job.ddp.wire() : nullptr;
}

void add_hook_options(nlohmann::json& plan, const DdpOptions& ddp) {
  const hooks::HookRow& row = hooks::hook_row(ddp.hook());
  add_options(plan, hooks::named_options(hooks::effective_options(ddp.hook(), ddp.hook_options())),
              [&](hooks::OptionKind kind) { return row.takes(kind); });
  if (row.format) {
    plan["hook_format"] = to_string(hooks::wire_format_of(ddp.hook(), ddp.wire()).value());
  } else if (row.chooses) {
    plan["auto"] = "decided when training begins, and again when the link changes";
  }
}

// In Gbit/s of a node's NIC or, within a node, of a rank.
nlohmann::json link_json(const collectives::LinkCost& link, int64_t sharers) {
  return {{"gbit_per_second", link.gbit(sharers)}, {"us_per_hop", 1e6 * link.seconds_per_hop}};
}

void add_link(nlohmann::json& plan, const collectives::Link& link, const node::NodeLayout& layout) {
  if (link.between_nodes) plan["link"]["between_nodes"] = link_json(*link.between_nodes, layout.segments());
  if (link.within_node) plan["link"]["within_node"] = link_json(*link.within_node, 1);
  if (plan.contains("link")) plan["link"]["text"] = hooks::link_text(link, layout);
}

void add_bucket_size(nlohmann::json& plan, const TrainJob& job, const JobInputs& inputs, int64_t world_size) {
  const int64_t ranks = inputs.device.is_cpu() ? world_size : 1;  // The model may not be on the GPU yet.
  const std::vector<at::Tensor> parameters = training::trained_parameters(*inputs.model);
  if (chooses_bucket_size(job.ddp, parameters, ranks)) {
    plan["bucket_cap_mb"] = "auto: decided in the first steps";
  } else {
    plan["bucket_cap_mb"] = *with_first_bucket_size(job.ddp, parameters, ranks).bucket_cap_mb();
  }
}

// The layouts over which ranks average. With an outer optimizer, gradients are averaged within each node of
// `gradients`, and `exchange` is the layout of the outer synchronisation. Else both are equal.
struct Layouts {
  node::NodeLayout exchange;
  node::NodeLayout gradients;
  std::optional<collectives::LinkCost> link = {};  // Between the nodes of `exchange`, once it is measured.
};

// A hook that compresses whole buckets sends more with several buckets than with all gradients in one.
const char* payload_name(const std::string& hook) {
  return hooks::hook_row(hook).compresses_buckets() ? "least_payload_bytes_per_step_and_rank"
                                                    : "payload_bytes_per_step_and_rank";
}

// With a quorum, the first rank of each group sends a message to all other groups.
int64_t payload_bytes_of_exchange(const OuterOptions& outer, int64_t numel, const Layouts& layouts) {
  if (outer.quorum()) {
    return (layouts.gradients.nodes() - 1) * (kRoundHeaderBytes + encoded_size(numel, *outer.wire().format));
  }
  return hooks::hook_row(hooks::kAnyFormatHook)
      .payload_bytes({.numel = outer.largest_fragment(numel)}, layouts.exchange, {nullptr, outer.wire(), std::nullopt});
}

void add_payload(nlohmann::json& plan, const TrainJob& job, const hooks::GradientSizes& gradients,
                 const Layouts& layouts) {
  hooks::HookOptions options = job.ddp.hook_options();
  if (layouts.link && !job.outer.has_value()) {
    options.wire.link_gbit = layouts.link->gbit(layouts.gradients.segments());
    options.wire.link_us = 1e6 * layouts.link->seconds_per_hop;
  }
  const hooks::HookRow& row = hooks::hook_row(job.ddp.hook());
  int64_t bytes = row.payload_bytes(gradients, layouts.gradients, options);
  if (job.training.optimizer_shards == training::OptimizerShards::kAll && row.format.has_value()) {
    bytes /= 2;  // One of two hops (CommHook::average_shards). The parameters are counted elsewhere.
  }
  if (job.outer.has_value()) {
    const int64_t exchange = payload_bytes_of_exchange(*job.outer, gradients.numel, layouts);
    plan["payload_bytes_per_exchange_and_rank"] = exchange;
    if (job.outer->sync_seconds()) {
      plan[payload_name(job.ddp.hook())] = kUnknownRounds;
      return;
    }
    bytes += (job.outer->fragments() * exchange + job.outer->sync_every() - 1) / job.outer->sync_every();
  }
  plan[payload_name(job.ddp.hook())] = bytes;
}

// A collective. Returns an empty link if nothing depends on it.
collectives::Link link_of_job(const TrainJob& job, const hooks::HookOptions& options, const node::NodeLayout& layout) {
  if (!job.outer.has_value() && !hooks::hook_row(job.ddp.hook()).takes(hooks::OptionKind::kLink)) {
    return {};
  }
  return with_network_errors(options.process_group->getRank(), "measuring the link",
                             [&] { return hooks::find_hook_link(options, layout); });
}

std::shared_ptr<const node::FoundNodes> found_nodes(const hooks::HookOptions& options) {
  return with_network_errors(options.process_group->getRank(), "finding the ranks of each node",
                             [&] { return hooks::find_hook_nodes(options); });
}

void add_layout(nlohmann::json& plan, const node::NodeLayout& layout) {
  plan["nodes"] = layout.text();
  plan["node_of_rank"] = layout.node_of_rank();
}

// For a hook that does not use nodes: adds which ranks share one.
void add_neighbours(nlohmann::json& plan, const ProcessGroupPtr& group) {
  if (group->getSize() > 1) {
    add_layout(plan, found_nodes({group})->neighbours);
    plan["exchange_levels"] = 1;
  }
}

// The most bytes that a rank has in its node's shared memory:
//   - With an outer optimizer, one fragment is in flight.
//   - With other hooks, two buckets are in flight. A bucket may exceed its cap by its last parameter.
//   - Exempt parameters are a separate array.
//   - A hook with staged_numel() may need as much for a bucket as for all gradients, so twice that is assumed.
int64_t staged_bytes(const TrainJob& job, const JobInputs& inputs, const hooks::GradientSizes& gradients) {
  const auto in_floats = static_cast<int64_t>(sizeof(float));
  if (job.outer.has_value()) {
    return job.outer->largest_fragment(gradients.numel) * in_floats;
  }
  if (const auto& staged_numel = hooks::hook_row(job.ddp.hook()).staged_numel) {
    return 2 * staged_numel(gradients, job.ddp.hook_options()) * in_floats;
  }
  const auto least = static_cast<int64_t>(kMeasuredBucketMb * kBytesOfMib);
  const int64_t bucket = std::max(job.ddp.bucket_bytes_cap(), least) + largest_parameter_bytes(*inputs.model);
  const auto two_buckets = [=](int64_t bytes) { return 2 * std::min(bucket, bytes); };
  const int64_t exempt = job.ddp.wire().exempt_one_dimensional ? gradients.one_dimensional : 0;
  return two_buckets(gradients.numel * in_floats) + two_buckets(exempt * in_floats);
}

// The options of hierarchical averaging, with `ranks_per_node` as the node size if they leave it open.
hooks::WireOptions expected_wire(const TrainJob& job, std::optional<int64_t> ranks_per_node) {
  const hooks::WireOptions* const wire = wire_of(job);
  if (wire == nullptr) {
    return job.ddp.wire();
  }
  hooks::WireOptions expected = *wire;
  if (!expected.node_size && expected.levels != hooks::Levels::kOne) {
    expected.node_size = ranks_per_node;
  }
  return expected;
}

// Adds the nodes of hierarchical averaging. One rank knows only its own node, unless the options have a node size.
void add_expected_nodes(nlohmann::json& plan, const TrainJob& job, const JobInputs& inputs,
                        const hooks::WireOptions& wire) {
  const auto world_size = plan["ranks"].get<int64_t>();
  if (wire_of(job) == nullptr || world_size == 1) {
    return;
  }
  const node::NodeLayout layout = hooks::expected_layout(wire, world_size);
  if (wire.levels == hooks::Levels::kOne) {
    plan["exchange_levels"] = 1;
  } else if (!wire.node_size) {
    plan["nodes"] = kUnknown;
  } else {
    add_layout(plan, layout);
    plan["exchange_levels"] = layout.has_levels() ? 2 : 1;
  }
  if (inputs.device.is_cpu() && plan.value("nodes", "") == kUnknown) {
    plan["node_memory_bytes"] = kUnknown;
  } else if (inputs.device.is_cpu() && layout.has_levels()) {
    const int64_t staged = staged_bytes(job, inputs, gradient_sizes(*inputs.model));
    plan["node_memory_bytes"] = std::ssize(layout.ranks_of(0)) * staged;
  }
}

// Throws c10::ValueError for shares that the model or the device cannot have. Batch norm depends on a rank's samples.
void check_shares(const TrainJob& job, const JobInputs& inputs, int64_t world_size) {
  const data::Shares& shares = job.training.shares;
  const bool is_auto = shares.kind == data::Shares::Kind::kAuto;
  if (shares.are_equal() || (!is_auto && training::batch_plan(job.training, world_size).is_even())) return;
  for (const auto& buffer : inputs.model->named_buffers()) {
    TORCH_CHECK_VALUE(
        job.training.shares_with_batch_norm || !buffer.key().ends_with(kBatchNormBuffer),
        "shares: ", data::to_string(shares), " would change the statistics of batch norm, which ", job.model, " has (",
        buffer.key(),
        "); replace it by group norm or layer norm, leave out shares, or allow it with shares_with_batch_norm");
  }
  TORCH_CHECK_VALUE(!is_auto || inputs.device.is_cpu(), "shares: auto measures processors only, but the device is ",
                    inputs.device.str(), "; give the samples of each rank");
  if (inputs.imported == nullptr) return;
  const auto [least, most] = training::sizes_of_passes(job.training, world_size);
  const models::Model::BatchSizes taken = inputs.imported->trained_sizes();
  TORCH_CHECK_VALUE(taken.least <= least && most <= taken.most, "shares: ", data::to_string(shares),
                    ": a rank may get ", least, " to ", most, " samples at once, but ", job.model, " takes ",
                    taken.least, " to ", taken.most);
}

// Adds the parts of a batch. Only the data show whether a module uses tokens.
void add_batch(nlohmann::json& plan, const TrainJob& job, const JobInputs& inputs, int64_t world_size) {
  const int64_t batch = job.training.batch_size;
  plan["batch_size_per_rank"] = data::samples_per_rank({.global_batch = batch, .world_size = world_size});
  if (!job.training.shares.samples.empty()) plan["batch_size_per_rank"] = job.training.shares.samples;
  if (!job.verification.has_value()) {
    plan[inputs.unit + "_per_step"] = batch * inputs.units_per_sample;
  }
}

void add_data(nlohmann::json& plan, const JobInputs& inputs) {
  plan["data"] = inputs.data_name;
  if (inputs.data_hash.has_value()) {
    plan["data_hash"] = hash_text(*inputs.data_hash);
  }
  if (inputs.dataset != nullptr) {
    plan["training_samples"] = inputs.dataset->training_size();
    plan["held_out_samples"] = inputs.dataset->held_out_size();
  }
  if (inputs.bigram_entropy.has_value()) {
    plan["bigram_entropy"] = *inputs.bigram_entropy;
  }
}

}  // namespace

nlohmann::json make_plan(const TrainJob& job, const JobInputs& inputs, int64_t world_size,
                         std::optional<int64_t> ranks_per_node) {
  check_optimizer_shards_on(job, inputs.device);
  check_shares(job, inputs, world_size);
  nlohmann::json plan;
  plan["version"] = job.version;
  plan["ranks"] = world_size;
  plan["network"] = network::describe_network(process_environment());
  options::add_options(plan, job);
  add_model(plan, inputs);
  const hooks::GradientSizes gradients = gradient_sizes(*inputs.model);
  plan["device"] = inputs.device.is_cuda() ? "cuda" : "cpu";  // Without the GPU's number, which differs between ranks.
  add_data(plan, inputs);
  if (inputs.dataset != nullptr) add_batch(plan, job, inputs, world_size);
  if (job.verification.has_value()) {
    plan["hooks"] = job.verification->hooks;
    add_hook_options(plan, job.ddp);
  } else {
    add_muon_parameters(plan, job, inputs);
    add_hook_options(plan, job.ddp);
    if (job.outer.has_value()) add_outer(plan, *job.outer);
    add_bucket_size(plan, job, inputs, world_size);
    const hooks::WireOptions wire = expected_wire(job, ranks_per_node);
    const node::NodeLayout layout = hooks::expected_layout(wire, world_size);
    const node::NodeLayout nodes = node::NodeLayout::of_size(world_size, ranks_per_node.value_or(1));
    const node::NodeLayout of_gradients = job.outer ? hooks::local_groups(job.ddp.local(), nodes) : layout;
    if (job.outer && job.dry_run) check_quorum(*job.outer, of_gradients.nodes());
    add_payload(plan, job, gradients, {.exchange = layout, .gradients = of_gradients});
    add_expected_nodes(plan, job, inputs, wire);
  }
  return files::with_utf8_strings(std::move(plan));  // Paths may have any bytes.
}

void add_nodes(nlohmann::json& plan, const TrainJob& job, const JobInputs& inputs, const ProcessGroupPtr& group) {
  const hooks::WireOptions* const wire = wire_of(job);
  if (job.verification.has_value()) {
    return;
  }
  if (wire == nullptr) {
    add_neighbours(plan, group);
    return;
  }
  const hooks::HookOptions options{group, *wire, job.ddp.channel_size()};
  const auto found = found_nodes(options);
  const node::NodeLayout& layout = found->layout;
  add_layout(plan, layout);
  plan["exchange_levels"] = layout.has_levels() ? 2 : 1;
  plan.erase("node_memory_bytes");
  const bool rounds = job.outer.has_value() || hooks::takes_wire_options(job.ddp.hook());
  if (layout.nodes() == 1 && layout.has_levels() && rounds) {
    plan["rounding"] = "one node: nothing is rounded";
  }
  if (!found->why_flat.empty()) {
    plan["why_one_level"] = found->why_flat;
  }
  if (wire->connections && inputs.device.is_cpu()) plan["connections_in_use"] = connections::connections_text(group);
  const hooks::GradientSizes gradients = gradient_sizes(*inputs.model);
  if (found->memory != nullptr && inputs.device.is_cpu()) {
    plan["node_memory_bytes"] = found->memory->local_size() * staged_bytes(job, inputs, gradients);
  }
  const node::NodeLayout of_gradients =
      job.outer.has_value() ? hooks::find_local_groups(job.ddp.hook_options(group)) : layout;
  if (job.outer.has_value()) plan["group_of_rank"] = of_gradients.node_of_rank();
  const collectives::Link link = link_of_job(job, options, layout);
  add_link(plan, link, layout);
  add_payload(plan, job, gradients, {.exchange = layout, .gradients = of_gradients, .link = link.between_nodes});
}

std::string nodes_text(const nlohmann::json& plan) {
  const std::string nodes = plan["nodes"].get<std::string>();
  if (plan["exchange_levels"] == 1) {
    return nodes + " (one level)";
  }
  return nodes + (plan.contains("rounding") ? " (" + plan["rounding"].get<std::string>() + ")" : "");
}

std::string hash_text(uint64_t hash) { return absl::StrFormat("%016x", hash); }

}  // namespace narrowcast::job

#include "trainer/train/job/optimizer_shards.h"

#include <c10/util/Exception.h>
#include <c10/util/StringUtil.h>

#include <algorithm>
#include <memory>
#include <ostream>
#include <string>
#include <vector>

#include <narrowcast/consensus.h>
#include <narrowcast/muon.h>
#include <narrowcast/network_errors.h>
#include <narrowcast/sharded_optimizer.h>
#include "ops/collectives/all_reduce/algorithms/two_levels.h"
#include "ops/comm/node/find_nodes.h"
#include "trainer/ddp/sharding/optimizer_kinds.h"
#include "trainer/ddp/sharding/shard_agreement.h"
#include "trainer/train/job/restarts.h"
#include "trainer/train/optimization/optimizer.h"

namespace narrowcast::job {
namespace {

using training::OptimizerKind;
using training::OptimizerShards;

std::shared_ptr<const node::FoundNodes> nodes_of(const AgreedJob& agreed) {
  return with_network_errors(agreed.group->getRank(), "finding the ranks of each node",
                             [&] { return node::find_nodes(agreed.group, agreed.job.ddp.wire().node_size); });
}

// Why the optimizer cannot be sharded within nodes.
std::string why_not(const node::FoundNodes& nodes) {
  return nodes.why_flat.empty() ? "every node has one rank" : nodes.why_flat;
}

// Whether the job asks for shards in any case.
bool asks_for_shards(const TrainJob& job) {
  return job.training.optimizer_shards == OptimizerShards::kNode ||
         job.training.optimizer_shards == OptimizerShards::kAll;
}

// Whether the job has trained with more ranks: it continues after a restart, or a rank has lived on since then.
bool has_begun(const TrainJob& job, const WorkerEnv& env, const InPlaceRecovery* recovery) {
  return has_restarted(job, env) || (recovery != nullptr && recovery->has_placed_shards);
}

// A collective. Within nodes, copies are on the nodes of the exchange.
int64_t nodes_of_copies(const AgreedJob& agreed) {
  const auto& node_size = agreed.job.ddp.wire().node_size;
  if (agreed.job.training.optimizer_shards == OptimizerShards::kNode) {
    return nodes_of(agreed)->layout.nodes();
  }
  return sharding::find_nodes_of_copies(agreed.group, node_size).nodes();
}

// The elements of rank 0's shard over all ranks.
int64_t elements_over_all(const AgreedJob& agreed, const node::NodeLayout& layout) {
  int64_t numel = 0;
  for (const at::Tensor& parameter : training::trained_parameters(*agreed.inputs.model)) {
    numel += parameter.numel();
  }
  return collectives::sent_parts(layout, 0, numel).mean.numel;
}

// The bytes of a rank's shard of all parameters, in one message for each other node. With second copies, one more
// message has the averages of its gradients.
int64_t parameter_bytes(const AgreedJob& agreed, const node::NodeLayout& layout, int64_t elements, WireFormat format) {
  const int64_t messages = layout.nodes() - 1 + (agreed.job.training.shard_copies - 1);
  return messages * encoded_size(elements, format);
}

bool has_whole_parameters(const TrainJob& job) { return job.training.optimizer.kind == OptimizerKind::kMuon; }

// Rank 0's shard of the optimizer's state.
struct PlannedShard {
  int64_t elements = 0;
  int64_t bytes = 0;  // of moments and, if parameters are sent as differences, of masters
};

// A shard of one of `count` ranks. `elements`: those of an elementwise optimizer, if the shard follows from buckets.
PlannedShard planned_shard(const AgreedJob& agreed, int64_t count, int64_t masters = 0,
                           std::optional<int64_t> elements = std::nullopt) {
  const auto optimizer = training::make_optimizer(*agreed.inputs.model, agreed.job.training.optimizer);
  const sharding::OptimizerKind& kind = *sharding::kind_of(*optimizer);
  const sharding::ShardRequest request =
      sharding::shard_request(*optimizer, ShardOptions().whole_parameters(has_whole_parameters(agreed.job)));
  const auto tensors_of = [&](size_t group) {
    int64_t tensors = masters;
    for (size_t i = 0; i < kind.tensors.size(); ++i) {
      tensors += kind.needs(optimizer->param_groups()[group].options(), i) ? 1 : 0;
    }
    return tensors;
  };
  PlannedShard planned;
  const auto add = [&](int64_t numel, size_t group) {
    planned.elements += numel;
    planned.bytes += tensors_of(group) * numel * static_cast<int64_t>(sizeof(float));
  };
  if (elements.has_value()) {
    add(*elements, 0);
    return planned;
  }
  const auto shards = sharding::cut(request.parameters, count, request.options, request.costs);
  for (const sharding::Piece& piece : shards.front()) {
    add(piece.numel, request.groups[piece.parameter]);
  }
  return planned;
}

// A collective: adds the dtype in which Muon makes matrices orthogonal.
void add_muon(nlohmann::json& plan, const AgreedJob& agreed) {
  if (agreed.job.training.optimizer.kind == OptimizerKind::kMuon) {
    plan["newton_schulz"] =
        optim::common_ns_dtype(agreed.group, agreed.inputs.device) == at::kBFloat16 ? "bfloat16" : "float32";
  }
}

}  // namespace

void check_shared_parameters(const TrainJob& job, const WorkerEnv& env) {
  if (!job.training.share_parameters) {
    return;
  }
  const OptimizerShards shards = job.training.optimizer_shards;
  TORCH_CHECK_VALUE(!job.verification.has_value(), "share_parameters: is of trainings, not of --verify_gradients");
  TORCH_CHECK_VALUE(shards == OptimizerShards::kNode || shards == OptimizerShards::kAuto,
                    "share_parameters: needs shard_optimizer node or auto, but it is ", training::to_string(shards));
  TORCH_CHECK_VALUE(env.world_size > 1, "share_parameters: needs several ranks, but there is one");
  TORCH_CHECK_VALUE(keeps_replicas_equal(job),
                    "share_parameters: needs a hook after which all ranks take the same step, but the hook is ",
                    job.ddp.hook());
}

void check_optimizer_shards(const TrainJob& job, const WorkerEnv& env) {
  if (!asks_for_shards(job)) {
    return;
  }
  const std::string name = to_string(job.training.optimizer_shards);
  TORCH_CHECK_VALUE(env.world_size > 1 || has_begun(job, env, nullptr), "shard_optimizer: ", name,
                    " needs several ranks, but there is one");
  TORCH_CHECK_VALUE(keeps_replicas_equal(job), "shard_optimizer: ", name,
                    " needs a hook after which all ranks take the same step, but the hook is ", job.ddp.hook());
}

TrainJob with_possible_shards(const AgreedJob& begun) {
  TrainJob job = begun.job;
  const bool is_within_nodes = job.training.optimizer_shards == OptimizerShards::kNode || job.training.share_parameters;
  if (!(asks_for_shards(job) || is_within_nodes) || job.verification.has_value()) {
    return job;
  }
  const int64_t ranks = begun.group->getSize();
  const bool is_alone = ranks == 1;
  const bool has_shards = !is_alone && (!is_within_nodes || nodes_of(begun)->layout.has_levels());
  std::string warning;
  if (!has_shards || (job.training.shard_copies == 2 && nodes_of_copies(begun) == 1)) {
    const bool has_begun_here = has_begun(job, begun.context.env, begun.recovery);
    const std::vector<std::string> answers = all_gather_text(begun.group, has_begun_here ? "yes" : "");
    const bool goes_on = std::ranges::find(answers, "yes") != answers.end();
    TORCH_CHECK_VALUE(goes_on || !is_alone, "shard_optimizer: ", to_string(job.training.optimizer_shards),
                      " needs several ranks, but there is one");
    if (!goes_on && !has_shards) {
      return job;  // optimizer_shards_of has the error.
    }
    TORCH_CHECK_VALUE(goes_on, "shard_copies: 2 needs two nodes, but all ", ranks, " ranks are on one");
    warning = is_alone ? "shard_optimizer: one rank is left, so its optimizer is not sharded until another node joins"
              : has_shards ? c10::str("shard_copies: all ", ranks,
                                      " ranks that are left are on one node, so each shard has one copy until another "
                                      "node joins")
                           : c10::str("shard_optimizer: ", ranks, " ranks are left, but ", why_not(*nodes_of(begun)),
                                      ", so the optimizer is not sharded until another node joins");
    job.training.shard_copies = 1;
  }
  if (!has_shards) {
    job.training.optimizer_shards = OptimizerShards::kOff;
    job.training.share_parameters = false;
    job.training.parameter_format.reset();
  }
  if (begun.recovery != nullptr) {
    begun.recovery->has_placed_shards = true;
  }
  if (!warning.empty() && begun.context.env.rank == 0) {
    begun.context.progress << "warning: " << warning << std::endl;
  }
  return job;
}

void check_optimizer_shards_on(const TrainJob& job, at::Device device) {
  TORCH_CHECK_VALUE(!asks_for_shards(job) || device.is_cpu(),
                    "shard_optimizer: ", to_string(job.training.optimizer_shards),
                    " needs parameters on the CPU, but the device is ", device);
  TORCH_CHECK_VALUE(!job.training.share_parameters || device.is_cpu(),
                    "share_parameters: needs parameters on the CPU, but the device is ", device);
}

void add_muon_parameters(nlohmann::json& plan, const TrainJob& job, const JobInputs& inputs) {
  if (job.training.optimizer.kind != OptimizerKind::kMuon) {
    return;
  }
  int64_t numel = 0;
  for (const at::Tensor& matrix : training::muon_matrices(*inputs.model, job.training.optimizer.adamw_parameters)) {
    numel += matrix.numel();
  }
  plan["muon_parameters"] = numel;
}

OptimizerShards optimizer_shards_of(const AgreedJob& agreed) {
  const OptimizerShards shards = agreed.job.training.optimizer_shards;
  const bool shares_parameters = agreed.job.training.share_parameters;
  if (shards == OptimizerShards::kAuto && !shares_parameters) {
    if (!agreed.inputs.device.is_cpu() || agreed.group->getSize() == 1 || !keeps_replicas_equal(agreed.job)) {
      return OptimizerShards::kOff;
    }
    const node::NodeLayout layout = nodes_of(agreed)->layout;
    const bool survives_losses = agreed.recovery == nullptr || layout.nodes() > 1;
    return layout.has_levels() && survives_losses ? OptimizerShards::kNode : OptimizerShards::kOff;
  }
  if (shards == OptimizerShards::kNode || shares_parameters) {
    const auto nodes = nodes_of(agreed);
    TORCH_CHECK_VALUE(nodes->layout.has_levels() || !shares_parameters, "share_parameters: is impossible, because ",
                      why_not(*nodes));
    TORCH_CHECK_VALUE(nodes->layout.has_levels(), "shard_optimizer: node is impossible, because ", why_not(*nodes));
    return OptimizerShards::kNode;
  }
  return shards;
}

void add_optimizer_shards(nlohmann::json& plan, const AgreedJob& agreed) {
  if (agreed.job.verification.has_value()) {
    return;
  }
  const OptimizerShards shards = optimizer_shards_of(agreed);
  if (plan.contains("shard_copies")) {
    plan["shard_copies"] = agreed.job.training.shard_copies;
  }
  add_muon(plan, agreed);
  if (shards == OptimizerShards::kOff) {
    plan["optimizer_bytes"] = planned_shard(agreed, 1).bytes;
  } else if (shards == OptimizerShards::kNode) {
    const int64_t ranks = std::ssize(nodes_of(agreed)->layout.ranks_of(0));
    plan["optimizer_shards"] = ranks;
    plan["optimizer_bytes"] = planned_shard(agreed, ranks).bytes;
  } else if (shards == OptimizerShards::kAll) {
    const int64_t ranks = agreed.group->getSize();
    const bool is_whole = has_whole_parameters(agreed.job);
    const bool has_one_level = is_whole || agreed.job.ddp.wire().levels == Levels::kOne;
    const node::NodeLayout layout = has_one_level ? node::NodeLayout::flat(ranks) : nodes_of(agreed)->layout;
    const WireFormat format = agreed.job.training.parameter_format.value_or(kDefaultParameterFormat);
    const PlannedShard shard =
        planned_shard(agreed, ranks, format == WireFormat::kFp32 ? 0 : 1,
                      is_whole ? std::nullopt : std::optional(elements_over_all(agreed, layout)));
    plan["optimizer_shards"] = ranks;
    plan["parameter_format"] = to_string(format);
    plan["parameter_bytes_per_step_and_rank"] = parameter_bytes(agreed, layout, shard.elements, format);
    plan["optimizer_bytes"] = agreed.job.training.shard_copies * shard.bytes;
  }
}

void print_optimizer_shards(const nlohmann::json& plan, const JobContext& context) {
  if (plan.contains("newton_schulz")) {
    context.progress << "muon: steps " << plan["muon_parameters"] << " of " << plan["parameters"] << " parameters, in "
                     << plan["newton_schulz"].get<std::string>() << std::endl;
  }
  if (!plan.contains("optimizer_shards")) {
    return;
  }
  context.progress << "optimizer: sharded over the " << plan["optimizer_shards"] << " ranks";
  if (plan.contains("parameter_bytes_per_step_and_rank")) {
    context.progress << ", parameters sent as " << plan["parameter_format"].get<std::string>() << ", "
                     << plan["parameter_bytes_per_step_and_rank"] << " bytes per step and rank"
                     << (plan.value("shard_copies", 1) == 2 ? ", two copies of each shard" : "") << std::endl;
  } else {
    context.progress << " of a node" << (plan.value("share_parameters", false) ? ", which share the parameters" : "")
                     << std::endl;
  }
}

}  // namespace narrowcast::job

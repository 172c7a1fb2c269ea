#include "trainer/train/job/optimizer_shards.h"

#include <c10/util/Exception.h>

#include <memory>
#include <ostream>

#include <narrowcast/network_errors.h>
#include "ops/comm/node/find_nodes.h"

namespace narrowcast::job {
namespace {

using training::OptimizerShards;

std::shared_ptr<const node::FoundNodes> nodes_of(const AgreedJob& agreed) {
  return with_network_errors(agreed.group->getRank(), "finding the ranks of each node",
                             [&] { return node::find_nodes(agreed.group, agreed.job.ddp.wire().node_size); });
}

}  // namespace

void check_optimizer_shards(const TrainJob& job, int64_t world_size) {
  if (job.training.optimizer_shards != OptimizerShards::kNode) {
    return;
  }
  TORCH_CHECK_VALUE(world_size > 1, "shard_optimizer: node needs several ranks, but there is one");
  TORCH_CHECK_VALUE(keeps_replicas_equal(job),
                    "shard_optimizer: node needs a hook after which all ranks take the same step, but the hook is ",
                    job.ddp.hook());
}

void check_optimizer_shards_on(const TrainJob& job, at::Device device) {
  TORCH_CHECK_VALUE(job.training.optimizer_shards != OptimizerShards::kNode || device.is_cpu(),
                    "shard_optimizer: node needs parameters on the CPU, but the device is ", device);
}

bool shards_optimizer(const AgreedJob& agreed) {
  const OptimizerShards shards = agreed.job.training.optimizer_shards;
  if (shards == OptimizerShards::kOff) {
    return false;
  }
  if (shards == OptimizerShards::kAuto) {
    return agreed.inputs.device.is_cpu() && agreed.group->getSize() > 1 && agreed.recovery == nullptr &&
           keeps_replicas_equal(agreed.job) && nodes_of(agreed)->layout.has_levels();
  }
  const auto nodes = nodes_of(agreed);
  TORCH_CHECK_VALUE(nodes->layout.has_levels(), "shard_optimizer: node is impossible, because ",
                    nodes->why_flat.empty() ? "every node has one rank" : nodes->why_flat);
  return true;
}

void add_optimizer_shards(nlohmann::json& plan, const AgreedJob& agreed) {
  if (!agreed.job.verification.has_value() && shards_optimizer(agreed)) {
    plan["optimizer_shards"] = nodes_of(agreed)->layout.ranks_of(0).size();
  }
}

void print_optimizer_shards(const nlohmann::json& plan, const JobContext& context) {
  if (plan.contains("optimizer_shards")) {
    context.progress << "optimizer: sharded over the " << plan["optimizer_shards"] << " ranks of a node" << std::endl;
  }
}

}  // namespace narrowcast::job

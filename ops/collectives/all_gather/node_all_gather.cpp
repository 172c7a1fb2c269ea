#include "ops/collectives/all_gather/node_all_gather.h"

#include <c10/util/Exception.h>

#include <utility>

namespace narrowcast::collectives {
namespace {

// The array of the node's memory that averages of whole buckets use as well.
constexpr int64_t kGatheredArray = 0;

}  // namespace

using node::NodeMemory;
using node::Phase;

NodeAllGatherJob::NodeAllGatherJob(NodeAllGatherOptions options)
    : options_(std::move(options)), memory_(*options_.nodes->memory), guard_(options_.nodes->memory) {
  TORCH_INTERNAL_ASSERT(static_cast<int64_t>(options_.bytes.size()) == memory_.local_size());
  for (int64_t local_rank = 0; local_rank < memory_.local_size(); ++local_rank) {
    memory_.check_numel(floats_of(local_rank));
  }
}

NodeAllGatherJob::~NodeAllGatherJob() = default;

// The node's memory counts in floats.
int64_t NodeAllGatherJob::floats_of(int64_t local_rank) const {
  constexpr auto kFloat = static_cast<int64_t>(sizeof(float));
  return (options_.bytes[local_rank] + kFloat - 1) / kFloat;
}

std::byte* NodeAllGatherJob::buffer_of(int64_t local_rank) const {
  return reinterpret_cast<std::byte*>(memory_.staging_buffer(use_, local_rank, floats_of(local_rank)));
}

bool NodeAllGatherJob::is_ready() {
  return is_staged_ || memory_.all_have_reached(Phase::kFinished, NodeMemory::before(use_));
}

void NodeAllGatherJob::start(engine::Transport& /*transport*/) {
  guard_.begin();
  use_ = memory_.take_slot(kGatheredArray);
  is_staged_ = false;
  if (memory_.all_have_reached(Phase::kFinished, NodeMemory::before(use_))) {
    stage();
  }
}

void NodeAllGatherJob::stage() {
  memory_.choose_buffer(use_, floats_of(memory_.local_rank()));
  call_.give(buffer_of(memory_.local_rank()));
  is_staged_ = true;
  memory_.reach(Phase::kStaged, use_);
}

void NodeAllGatherJob::advance(engine::Transport& transport) {
  if (!is_staged_) {
    memory_.wait_until_all_reached(transport, Phase::kFinished, NodeMemory::before(use_));
    stage();
  }
}

// Each rank begins with the rank after it, so that not all of them read the same memory at once.
at::Tensor NodeAllGatherJob::finish(engine::Transport& transport) {
  for (int64_t distance = 1; distance < memory_.local_size(); ++distance) {
    const int64_t local_rank = (memory_.local_rank() + distance) % memory_.local_size();
    memory_.wait_until_reached(transport, {Phase::kStaged, use_, local_rank});
    call_.take(local_rank, buffer_of(local_rank));
  }
  memory_.reach(Phase::kFinished, use_);
  guard_.end();
  call_ = {};
  return {};
}

}  // namespace narrowcast::collectives

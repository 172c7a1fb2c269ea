// An all-gather among the ranks of each node, in the node's memory. Nothing is sent between nodes.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include <narrowcast/export.h>
#include "ops/comm/engine/engine.h"
#include "ops/comm/node/find_nodes.h"
#include "ops/comm/node/node_memory.h"

namespace narrowcast::collectives {

struct NodeAllGatherOptions {
  std::string name = {};                                    // The exchange's name in errors.
  std::shared_ptr<const node::FoundNodes> nodes = nullptr;  // Must have memory, also on a rank that is alone.
  std::vector<int64_t> bytes = {};  // Each rank of this node gives so many, by local rank; >= 0.
};

// Each rank of a node gives bytes, and takes those that the other ranks of its node have given. All ranks of the group
// submit it, as every job of an engine.
class NARROWCAST_EXPORT NodeAllGatherJob final : public engine::Job {
 public:
  // Both functions run on the engine's thread.
  struct Call {
    std::function<void(std::byte* to)> give;                              // Writes this rank's bytes.
    std::function<void(int64_t local_rank, const std::byte* from)> take;  // Reads another rank's bytes.
  };

  // Throws c10::ValueError, on all ranks of the node, if the node's memory is too small for the bytes of a rank.
  explicit NodeAllGatherJob(NodeAllGatherOptions options);
  ~NodeAllGatherJob() override;
  NodeAllGatherJob(const NodeAllGatherJob&) = delete;
  NodeAllGatherJob& operator=(const NodeAllGatherJob&) = delete;

  // For the next submission.
  void set_call(Call call) { call_ = std::move(call); }

  std::string name() const override { return options_.name; }
  bool is_ready() override;
  void start(engine::Transport& transport) override;
  void advance(engine::Transport& transport) override;
  // Returns an undefined tensor.
  at::Tensor finish(engine::Transport& transport) override;
  void give_up() override { guard_.give_up(); }

 private:
  int64_t floats_of(int64_t local_rank) const;
  std::byte* buffer_of(int64_t local_rank) const;
  void stage();

  const NodeAllGatherOptions options_;
  node::NodeMemory& memory_;
  Call call_;
  node::SlotUse use_;
  bool is_staged_ = false;
  node::FailureGuard guard_;
};

}  // namespace narrowcast::collectives

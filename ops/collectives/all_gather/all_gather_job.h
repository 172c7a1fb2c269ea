// An all-gather of messages among all ranks of a group: between nodes by the network, and in a node's memory.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstddef>
#include <cstdint>
#include <exception>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include <narrowcast/export.h>
#include "ops/collectives/all_reduce/memory/message_memory.h"
#include "ops/comm/engine/engine.h"
#include "ops/comm/node/find_nodes.h"
#include "ops/comm/node/node_memory.h"

namespace narrowcast::collectives {

struct AllGatherOptions {
  std::string name = {};  // The exchange's name in errors.
  int64_t rank = 0;
  std::shared_ptr<const node::FoundNodes> nodes = nullptr;
  // Each rank gives so many, by rank; >= 0. With nodes of unequal sizes, 0 for ranks that own no segment (NodeLayout).
  std::vector<int64_t> bytes = {};
};

// Each rank gives bytes, and all ranks take those of all others. If a rank cannot give them, all ranks fail at the end
// of the exchange: this one with its error, the others with a c10::DistBackendError that names it. Each message begins
// with a header of kHeaderBytes that tells it. Only the failure of a rank without a segment stays in its node.
//
// One level:  each rank sends its bytes to every other one.
// Two levels: a rank exchanges bytes with the ranks of the same local rank on the other nodes. It then puts what it
//             has into its node's memory, where the other ranks of its node read it. So each node receives the bytes of
//             every other rank once.
class NARROWCAST_EXPORT AllGatherJob final : public engine::Job {
 public:
  // Both functions run on the engine's thread.
  struct Call {
    std::function<void(std::byte* to)> give;                        // Writes this rank's bytes, also if it has none.
    std::function<void(int64_t rank, const std::byte* from)> take;  // Reads the bytes of a rank that has some.
  };

  // Throws c10::ValueError, on all ranks of the node, if the node's memory is too small.
  AllGatherJob(AllGatherOptions options, std::shared_ptr<MessageMemory> memory);
  ~AllGatherJob() override;
  AllGatherJob(const AllGatherJob&) = delete;
  AllGatherJob& operator=(const AllGatherJob&) = delete;

  // For the next submission.
  void set_call(Call call) { call_ = std::move(call); }

  static constexpr int64_t kHeaderBytes = engine::Transport::kLeastBytes;

  // Bytes that this rank sends per submission, to all peers together, with headers.
  int64_t payload_bytes() const;

  std::string name() const override { return options_.name; }
  int64_t advances() const override { return has_levels() ? 1 : 0; }
  void start(engine::Transport& transport) override;
  void advance(engine::Transport& transport) override;
  // Returns an undefined tensor.
  at::Tensor finish(engine::Transport& transport) override;
  void give_up() override { guard_.give_up(); }

 private:
  bool has_levels() const { return node_ != nullptr; }
  std::vector<int64_t> ranks_of_column(int64_t local_rank) const;
  int64_t column_floats(int64_t local_rank) const;
  std::byte* column_buffer(int64_t local_rank) const;
  void write_message(std::byte* message);
  void wait_for_column(engine::Transport& transport);
  void take_message(int64_t rank, const std::byte* message);
  void take_column(int64_t local_rank);
  void throw_failure() const;

  const AllGatherOptions options_;
  const std::shared_ptr<MessageMemory> memory_;
  const std::shared_ptr<node::NodeMemory> node_;  // Null with one level.
  // The ranks whose bytes this rank has after the network's part, by node; with one level, all ranks.
  const std::vector<int64_t> column_;
  MessageOffsets offsets_;
  Call call_;
  // State of the call in progress:
  std::vector<at::Tensor> placed_;  // By place in column_.
  std::vector<int64_t> receives_;   // By place in column_, without this rank.
  std::exception_ptr failure_;      // Why this rank could not give its bytes.
  std::optional<int64_t> failed_;   // Another rank that could not.
  node::SlotUse use_;
  node::FailureGuard guard_;
};

}  // namespace narrowcast::collectives

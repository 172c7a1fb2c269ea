// Ranks that hold copies of the shards of other nodes, and what the owners of these shards send them.
#pragma once

#include <cstdint>
#include <exception>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include <narrowcast/process_group.h>
#include <narrowcast/wire_format.h>
#include "ops/comm/engine/engine.h"
#include "ops/comm/node/node_layout.h"
#include "trainer/ddp/shards/shards.h"

namespace narrowcast::sharding {

// By rank, the rank that holds a copy of its shard; kNoCopy for ranks that own no segment of `layout`, and so no shard.
// Copies are on the next of the `nodes`, whose owners of shards take turns. Throws c10::ValueError if all ranks with
// shards are on one node.
inline constexpr int64_t kNoCopy = -1;
std::vector<int64_t> copy_holders(const node::NodeLayout& nodes, const node::NodeLayout& layout);

// Each owner of a shard sends the rank that holds the shard's copy as many numbers as the shard has elements.
class CopyExchange {
 public:
  // `holders`: as from copy_holders.
  CopyExchange(ProcessGroupPtr group, std::vector<int64_t> holders);

  // The ranks of whose shards this rank holds copies, in ascending order.
  const std::vector<int64_t>& owners() const { return owners_; }

  // The sizes of all ranks' shards, for the next calls. Not a collective.
  void set_sizes(std::vector<int64_t> numels) { numels_ = std::move(numels); }

  // A collective. Sends `own`, the numbers of this rank's shard, in `format`, and writes the numbers of the shards of
  // owners() to `copies`. The numbers of `own` become what their holder decodes, so that both have the same bits. Gaps
  // are sent as zeros, and not written.
  //
  // With a `failure` this rank sends nothing else, and only the rank that holds its copy learns of it. Returns
  // `failure`, or an error that names an owner that had one. Throws c10::DistBackendError if a peer fails.
  std::exception_ptr send(const std::string& name, WireFormat format, const Elements& own,
                          const std::vector<Elements>& copies, const std::exception_ptr& failure);

  // All bytes that this rank has sent, with headers.
  int64_t bytes_sent() const { return bytes_sent_; }

 private:
  const ProcessGroupPtr group_;
  const std::vector<int64_t> holders_;
  const std::vector<int64_t> owners_;
  const std::shared_ptr<engine::Engine> engine_;
  std::vector<int64_t> numels_;
  int64_t bytes_sent_ = 0;
};

}  // namespace narrowcast::sharding

// Groups of a part of the ranks, over which a mean on a GPU's stream goes where ranks share nodes.
#pragma once

#include <c10/core/Device.h>
#include <c10/core/Event.h>
#include <c10/core/Stream.h>
#include <c10/core/impl/VirtualGuardImpl.h>
#include <c10/util/intrusive_ptr.h>

#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <torch/csrc/distributed/c10d/ProcessGroup.hpp>
#include <torch/csrc/distributed/c10d/Store.hpp>

#include <narrowcast/export.h>
#include "ops/comm/groups/broken_groups.h"
#include "ops/comm/node/node_layout.h"

namespace narrowcast::collectives {

// Makes the group of `size` ranks that find each other in `store`, of which this one is number `place`.
using MakeGroup =
    std::function<c10::intrusive_ptr<c10d::ProcessGroup>(c10::intrusive_ptr<c10d::Store> store, int place, int size)>;

// Two groups split off from another one, of ranks in ascending order. They end with this object as SplitGroup says, and
// are broken off with the other one.
class NARROWCAST_EXPORT StreamGroups {
 public:
  using Group = c10::intrusive_ptr<c10d::ProcessGroup>;

  // A collective of the group's ranks, whose nodes are `layout`. They find each other in the group's store, each time
  // under names of their own. c10::DistBackendError naming this rank if a peer or the network fails.
  StreamGroups(const Group& group, node::NodeLayout layout, const MakeGroup& make);
  StreamGroups(const StreamGroups&) = delete;
  StreamGroups& operator=(const StreamGroups&) = delete;

  const node::NodeLayout& layout() const { return layout_; }

  // The ranks of this rank's node.
  const Group& node() const { return node_.group(); }

  // The owners of this rank's segment, by node. Null if it owns none, and with one node.
  const Group& owners() const { return owners_.group(); }

 private:
  const node::NodeLayout layout_;
  SplitGroup node_;
  SplitGroup owners_;
};

// Collectives that several streams enqueue run one after another, in the order in which the host enqueues them, which
// is the same on all ranks, on whatever streams and over whatever communicators. Two that ran at once, on each rank in
// another order, could wait for each other for ever.
class CollectiveOrder {
 public:
  // Calls body(), which enqueues a collective on the current stream of `device`; it begins when the one before is done.
  // On the CPU, where body() waits for it, that is all.
  void enqueue(c10::Device device, const std::function<void()>& body) {
    if (device.is_cpu()) {
      body();
      return;
    }
    const c10::Stream stream = c10::impl::VirtualGuardImpl(device.type()).getStream(device);
    if (last_stream_.has_value() && *last_stream_ != stream) {
      last_->block(stream);
    }
    body();
    if (!last_.has_value() || last_stream_->device() != device) {
      last_.emplace(device.type());
    }
    last_->record(stream);
    last_stream_ = stream;
  }

 private:
  std::optional<c10::Stream> last_stream_;
  std::optional<c10::Event> last_;  // Behind the last collective, on that stream.
};

// The ranks whose arrays are averaged on a stream.
struct StreamRanks {
  c10::intrusive_ptr<c10d::ProcessGroup> group;
  std::shared_ptr<const StreamGroups> groups = nullptr;  // Those of the nodes; null for one level.
  std::shared_ptr<CollectiveOrder> order = nullptr;      // Of means on several streams; null for one stream.
};

namespace gpu {

// Makes groups that move CUDA tensors as `group` does: by an NCCL communicator of their own, made at their first
// collective, on the same GPU, with the same time limit. Null if the group moves them by something else, or not at all.
NARROWCAST_EXPORT MakeGroup group_maker(const c10::intrusive_ptr<c10d::ProcessGroup>& group);

}  // namespace gpu
}  // namespace narrowcast::collectives

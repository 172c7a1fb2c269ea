// Groups of some of the ranks, for a hierarchical mean on a GPU's stream.
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

// Makes a group of `size` ranks, which find each other in `store`. This rank is number `place`.
using MakeGroup =
    std::function<c10::intrusive_ptr<c10d::ProcessGroup>(c10::intrusive_ptr<c10d::Store> store, int place, int size)>;

}  // namespace narrowcast::collectives

namespace narrowcast {
namespace NARROWCAST_EXPORT collectives {  // Used by our other libraries as well.

// Two groups split off from another group, with ranks in ascending order. They end with this object, as SplitGroup
// describes, and are aborted together with the other group.
class StreamGroups {
 public:
  using Group = c10::intrusive_ptr<c10d::ProcessGroup>;

  // A collective of the group's ranks, whose nodes are `layout`. The ranks find each other in the group's store, each
  // time under new keys. c10::DistBackendError naming this rank if a peer or the network fails.
  StreamGroups(const Group& group, node::NodeLayout layout, const MakeGroup& make);
  StreamGroups(const StreamGroups&) = delete;
  StreamGroups& operator=(const StreamGroups&) = delete;

  const node::NodeLayout& layout() const { return layout_; }

  // The ranks of this rank's node.
  const Group& node() const { return node_.group(); }

  // The owners of this rank's segment, by node. Null if this rank owns none, and with one node.
  const Group& owners() const { return owners_.group(); }

 private:
  const node::NodeLayout layout_;
  SplitGroup node_;
  SplitGroup owners_;
};

namespace gpu {

// Makes groups that move CUDA tensors as `group` does: with a separate NCCL communicator, created at the first
// collective, on the same GPU, with the same timeout. Null if the group does not use NCCL for CUDA tensors.
MakeGroup group_maker(const c10::intrusive_ptr<c10d::ProcessGroup>& group);

}  // namespace gpu

}  // namespace collectives
}  // namespace narrowcast

namespace narrowcast::collectives {

// Serialises the collectives of several streams and communicators, in the order in which the host enqueues them. That
// order must be the same on all ranks. Two concurrent collectives that start in different orders on different ranks
// could deadlock.
class CollectiveOrder {
 public:
  // Calls body(), which enqueues a collective on the current stream of `device`. The collective begins once the one
  // before it is done. On the CPU, body() blocks until its collective is done, and nothing else is needed.
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
  std::optional<c10::Event> last_;  // Recorded after the last collective, on its stream.
};

// The ranks that average their arrays on a stream.
struct StreamRanks {
  c10::intrusive_ptr<c10d::ProcessGroup> group;
  std::shared_ptr<const StreamGroups> groups = nullptr;  // Groups of the nodes; null for one level.
  std::shared_ptr<CollectiveOrder> order = nullptr;      // For means on several streams; null for one stream.
};

}  // namespace narrowcast::collectives

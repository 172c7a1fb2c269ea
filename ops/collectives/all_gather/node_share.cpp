#include "ops/collectives/all_gather/node_share.h"

#include <c10/util/Exception.h>

#include <cstring>
#include <optional>
#include <utility>

#include "ops/collectives/all_gather/node_all_gather.h"
#include "ops/comm/engine/engine.h"
#include "ops/comm/groups/agree.h"
#include "ops/comm/node/shared_memory.h"
#include "ops/common/error_message.h"

namespace narrowcast::collectives {
namespace {

using node::SharedMemory;

// One rank's part. The first rank of the node makes the memory, and sends its descriptor on the connections by which
// the node's ranks have found each other.
class NodeShare {
 public:
  explicit NodeShare(const NodeShareOptions& options) : options_(options), connected_(*options.nodes->memory) {}

  std::shared_ptr<NodeAllGatherJob> job() {
    NodeAllGatherOptions gather{.name = options_.name, .nodes = options_.nodes};
    gather.bytes.assign(connected_.local_size(), 0);
    gather.bytes[0] = sizeof(int64_t);
    const auto job = std::make_shared<NodeAllGatherJob>(std::move(gather));
    job->set_call({.give = [this](std::byte* to) { give(to); },
                   .take = [this](int64_t local_rank, const std::byte* from) { take(local_rank, from); }});
    return job;
  }

  // After the job. Throws c10::ValueError if this rank does not have the memory.
  std::shared_ptr<std::byte> allocated() {
    if (failure_.empty() && memory_.has_value()) {
      failure_ = failure_of([&] {
        for (const NodeShareOptions::Range& range : options_.own) memory_->allocate(range.begin, range.size);
      });
    }
    TORCH_CHECK_VALUE(failure_.empty(), failure_);
    if (!memory_.has_value()) {
      return nullptr;  // The first rank has failed, and throws.
    }
    const auto memory = std::make_shared<SharedMemory>(*std::move(memory_));
    return {memory, memory->data()};
  }

 private:
  // Writes to how many ranks a descriptor is on its way. They take it even if another one cannot get it, so that
  // nothing is left on a connection.
  void give(std::byte* to) {
    if (connected_.local_rank() != 0) {
      return;
    }
    int64_t sent = 0;
    failure_ = failure_of([&] {
      node::check_available(options_.bytes);
      memory_.emplace(SharedMemory::create(options_.bytes));
      while (sent + 1 < connected_.local_size()) {
        node::send_descriptor(connected_.connection_to(sent + 1), memory_->descriptor());
        ++sent;
      }
    });
    std::memcpy(to, &sent, sizeof sent);
  }

  void take(int64_t local_rank, const std::byte* from) {
    if (local_rank != 0) {
      return;
    }
    int64_t sent = 0;
    std::memcpy(&sent, from, sizeof sent);
    if (connected_.local_rank() <= sent) {
      failure_ = failure_of(
          [&] { memory_.emplace(SharedMemory::open(node::receive_descriptor(connected_.connection_to(0)))); });
    }
  }

  const NodeShareOptions& options_;
  const node::NodeMemory& connected_;
  std::optional<SharedMemory> memory_;
  std::string failure_;
};

}  // namespace

std::shared_ptr<std::byte> share_on_node(const c10::intrusive_ptr<c10d::ProcessGroup>& group,
                                         const NodeShareOptions& options) {
  NodeShare share(options);
  engine::Engine::for_group(group)->submit(share.job())->waitAndThrow();
  std::shared_ptr<std::byte> memory;
  agree(group, {.call = options.name, .refusal = refusal_of([&] { memory = share.allocated(); })});
  return memory;
}

}  // namespace narrowcast::collectives

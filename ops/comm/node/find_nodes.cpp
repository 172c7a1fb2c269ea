#include "ops/comm/node/find_nodes.h"

#include <ATen/ops/zeros.h>
#include <c10/util/Exception.h>
#include <c10/util/StringUtil.h>

#include <algorithm>
#include <cstring>
#include <mutex>
#include <string_view>
#include <system_error>
#include <utility>
#include <vector>

#include "ops/comm/engine/engine.h"
#include "ops/comm/node/shared_memory.h"
#include "ops/common/error_message.h"
#include "ops/common/file_descriptor.h"
#include "ops/common/per_group.h"

namespace narrowcast::node {
namespace {

// The messages that every rank sends to every other, one per round. All messages of a round have the same size.
enum class Round {
  kName,     // Name of the socket on which the rank listens; zeros if it cannot.
  kReached,  // By rank, whether this rank could connect to it; tried for lower ranks only.
  kHanded,   // The first rank of each node has passed its memory to the others.
  kRefusal,  // Why the rank does not share memory with its node; empty if it does.
};
constexpr int64_t kRounds = 4;
constexpr int64_t kRefusalBytes = 256;

// One rank's search.
class FindJob final : public engine::Job {
 public:
  FindJob(int64_t rank, int64_t world_size, std::optional<int64_t> node_size)
      : rank_(rank), world_size_(world_size), node_size_(node_size), connections_(world_size) {
    for (int64_t round = 0; round < kRounds; ++round) {
      received_.push_back(at::zeros({world_size, bytes_of(static_cast<Round>(round))}, at::kByte));
    }
  }

  std::string name() const override { return "finding the ranks of each node"; }
  int64_t advances() const override { return kRounds - 1; }

  void start(engine::Transport& transport) override {
    for (int64_t round = 0; round < kRounds; ++round) {
      for (int64_t distance = 1; distance < world_size_; ++distance) {
        const int64_t peer = transport.peer_before(distance);
        receives_.push_back(transport.post_receive({received_[round][peer], peer, round}));
      }
    }
    or_refuse([&] {
      const SocketName name = random_socket_name();
      listening_ = listen_locally(name);
      std::memcpy(row(Round::kName, rank_), name.data(), name.size());
    });
    announce(transport, Round::kName);
  }

  void advance(engine::Transport& transport) override {
    const auto round = static_cast<Round>(round_++);
    wait_for_all(transport, round);
    switch (round) {
      case Round::kName:
        or_refuse([&] { connect(); });
        return announce(transport, Round::kReached);
      case Round::kReached:
        layout_ = node_size_ ? NodeLayout::of_size(world_size_, *node_size_) : layout_by_reach();
        or_refuse([&] {
          accept();
          make_memory();
          hand_over();
        });
        return announce(transport, Round::kHanded);
      default:
        or_refuse([&] { take_over(); });
        std::memcpy(row(Round::kRefusal, rank_), refusal_.data(), std::min<size_t>(refusal_.size(), kRefusalBytes - 1));
        return announce(transport, Round::kRefusal);
    }
  }

  at::Tensor finish(engine::Transport& transport) override {
    wait_for_all(transport, Round::kRefusal);
    return received_[0];
  }

  // The result, after the exchange.
  FoundNodes found() {
    const std::string refusal = first_refusal();
    if (!refusal.empty()) {
      TORCH_CHECK_VALUE(!node_size_, "node_size: ", *node_size_,
                        " consecutive ranks must be able to share memory, but ", refusal);
      return {NodeLayout::flat(world_size_), nullptr, refusal, layout_};
    }
    return {layout_, std::move(found_), {}, layout_};
  }

 private:
  int64_t bytes_of(Round round) const {
    switch (round) {
      case Round::kReached:
        return std::max(world_size_, engine::Transport::kLeastBytes);
      case Round::kRefusal:
        return kRefusalBytes;
      default:
        return engine::Transport::kLeastBytes;
    }
  }

  uint8_t* row(Round round, int64_t rank) const {
    return received_[static_cast<size_t>(round)][rank].mutable_data_ptr<uint8_t>();
  }

  // Sends this rank's own row.
  void announce(engine::Transport& transport, Round round) const {
    const at::Tensor own = received_[static_cast<size_t>(round)][rank_];
    for (int64_t distance = 1; distance < world_size_; ++distance) {
      transport.send({own, transport.peer_after(distance), static_cast<int64_t>(round)});
    }
  }

  void wait_for_all(engine::Transport& transport, Round round) const {
    const auto peers = static_cast<size_t>(world_size_ - 1);
    for (size_t i = 0; i < peers; ++i) {
      transport.wait_receive(receives_[static_cast<size_t>(round) * peers + i]);
    }
  }

  // Runs a step. A failure, of the system or for lack of memory, is kept and sent to all ranks, because ranks of this
  // node would wait for this rank.
  template <class Body>
  void or_refuse(const Body& body) {
    const std::string failure = failure_of(body);
    if (!failure.empty() && refusal_.empty()) {
      refusal_ = c10::str("rank ", rank_, ": ", failure);
    }
  }

  void connect() {
    for (int64_t other = 0; other < rank_; ++other) {
      SocketName name;
      std::memcpy(name.data(), row(Round::kName, other), name.size());
      if (name != SocketName{}) {
        connections_[other] = connect_locally(name, rank_);
      }
      row(Round::kReached, rank_)[other] = static_cast<uint8_t>(connections_[other].is_open());
    }
  }

  // All ranks that reported a connection have connected by now.
  void accept() {
    if (!listening_.is_open()) {
      return;
    }
    while (auto accepted = accept_locally(listening_)) {
      if (accepted->rank > rank_ && accepted->rank < world_size_) {
        connections_[accepted->rank] = std::move(accepted->connection);
      }
    }
    listening_.close();
  }

  // Assigns each rank to the first node whose previous ranks it has all reached. The result is equal on all ranks.
  NodeLayout layout_by_reach() const {
    std::vector<int64_t> node_of_rank;
    std::vector<std::vector<int64_t>> nodes;
    for (int64_t rank = 0; rank < world_size_; ++rank) {
      const uint8_t* const reached = row(Round::kReached, rank);
      auto node = std::find_if(nodes.begin(), nodes.end(), [&](const std::vector<int64_t>& members) {
        return std::all_of(members.begin(), members.end(), [&](int64_t member) { return reached[member] != 0; });
      });
      if (node == nodes.end()) {
        node = nodes.emplace(nodes.end());
      }
      node->push_back(rank);
      node_of_rank.push_back(node - nodes.begin());
    }
    return NodeLayout(node_of_rank);
  }

  const std::vector<int64_t>& own_node() const { return layout_.ranks_of(layout_.node_of(rank_)); }

  // A connection to a rank of this node.
  const FileDescriptor& connection_to(int64_t other) const {
    if (!connections_[other].is_open()) {
      throw std::system_error(ECONNREFUSED, std::generic_category(), c10::str("a local connection to rank ", other));
    }
    return connections_[other];
  }

  // Makes the memory, on the first rank of each node. A node of one rank also has memory if other nodes have several
  // ranks.
  void make_memory() {
    if (layout_.has_levels() && own_node().front() == rank_) {
      memory_.emplace(NodeMemory::reserve(std::ssize(own_node())));
    }
  }

  void hand_over() const {
    if (!memory_) {
      return;
    }
    for (const int64_t other : own_node()) {
      if (other != rank_) {
        send_descriptor(connection_to(other), memory_->descriptor());
      }
    }
  }

  void take_over() {
    const std::vector<int64_t>& ranks = own_node();
    if (!layout_.has_levels() || !refusal_.empty()) {
      return;
    }
    std::vector<FileDescriptor> connections;
    for (const int64_t other : ranks) {
      if (other != rank_) {
        connection_to(other);
      }
    }
    if (ranks.front() != rank_) {
      memory_.emplace(SharedMemory::open(receive_descriptor(connections_[ranks.front()])));
    }
    for (const int64_t other : ranks) {
      connections.push_back(std::move(connections_[other]));
    }
    found_ =
        std::make_shared<NodeMemory>(std::move(*memory_), ranks, layout_.local_rank_of(rank_), std::move(connections));
    memory_.reset();
  }

  std::string first_refusal() const {
    for (int64_t rank = 0; rank < world_size_; ++rank) {
      const auto* const text = reinterpret_cast<const char*>(row(Round::kRefusal, rank));
      const std::string refusal(text, ::strnlen(text, kRefusalBytes));
      if (!refusal.empty()) {
        return refusal;
      }
    }
    return {};
  }

  const int64_t rank_;
  const int64_t world_size_;
  const std::optional<int64_t> node_size_;
  std::vector<at::Tensor> received_;  // By round: uint8 [W, bytes]; this rank's row is its message.
  std::vector<int64_t> receives_;     // By round, then by distance of the peer.
  int64_t round_ = 0;
  FileDescriptor listening_;
  std::optional<SharedMemory> memory_;       // Made by this rank, or received from the first rank of the node.
  std::vector<FileDescriptor> connections_;  // By rank.
  NodeLayout layout_ = NodeLayout::flat(1);
  std::shared_ptr<NodeMemory> found_;
  std::string refusal_;  // This rank's first failure.
};

using Group = c10d::ProcessGroup;

// The nodes of one group, by node size; 0 if none is given.
struct NodesOfGroup {
  KeptByKey<int64_t, FoundNodes> by_size;
  std::mutex mutex;
  std::vector<std::weak_ptr<NodeMemory>> memories;  // of all of them
};
using KeptNodes = PerGroup<NodesOfGroup>;

KeptNodes& kept_nodes() {
  static KeptNodes nodes;
  return nodes;
}

}  // namespace

std::shared_ptr<const FoundNodes> find_nodes(const c10::intrusive_ptr<Group>& group, std::optional<int64_t> node_size) {
  TORCH_CHECK_VALUE(group, "process_group must be a process group, but is null");
  TORCH_CHECK_VALUE(!node_size || *node_size >= 1, "node_size: must be at least 1, but is ", *node_size);
  const int64_t world_size = group->getSize();
  if (world_size == 1 || node_size == 1) {
    return FoundNodes::flat(world_size);
  }
  const auto kept = kept_nodes().of(group);
  if (auto known = kept->by_size.find(node_size.value_or(0))) {
    return known;
  }
  const auto job = std::make_shared<FindJob>(group->getRank(), world_size, node_size);
  engine::Engine::for_group(group)->submit(job)->waitAndThrow();
  auto found = std::make_shared<const FoundNodes>(job->found());
  kept->by_size.keep(node_size.value_or(0), found);
  const std::lock_guard<std::mutex> lock(kept->mutex);
  kept->memories.push_back(found->memory);
  return found;
}

void free_ended_groups() { kept_nodes().free_ended(); }

void leave_nodes(const c10::intrusive_ptr<Group>& group) {
  const auto kept = kept_nodes().of(group);
  const std::lock_guard<std::mutex> lock(kept->mutex);
  for (const std::weak_ptr<NodeMemory>& memory : kept->memories) {
    if (const auto found = memory.lock()) {
      found->give_up();
    }
  }
}

void check_levels(Levels levels, const FoundNodes& found) {
  TORCH_CHECK_VALUE(levels != Levels::kTwo || found.layout.has_levels(), "levels: two is impossible, because ",
                    found.why_flat.empty() ? "every node has one rank" : found.why_flat);
}

}  // namespace narrowcast::node

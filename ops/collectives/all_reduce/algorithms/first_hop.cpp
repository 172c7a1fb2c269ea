#include "ops/collectives/all_reduce/algorithms/first_hop.h"

#include <algorithm>
#include <utility>

namespace narrowcast::collectives {
namespace {

// While one chunk of a shard is summed, the next one is being sent. Smaller messages cost more than the overlap saves,
// and more chunks take processors from the ranks that share a machine.
constexpr int64_t kLeastMessageBytes = int64_t{256} << 10;
constexpr int64_t kMostMessagesOfAShard = 2;

std::vector<std::vector<ElementRange>> cut_shards(const AllReduceOptions& options) {
  const int64_t count = two_shot_chunks(options.numel, options.world_size, options.format);
  std::vector<std::vector<ElementRange>> chunks;
  for (const ElementRange& shard : cut(options.numel, options.world_size)) {
    chunks.push_back(cut(shard, count));
  }
  return chunks;
}

}  // namespace

FirstHop::FirstHop(const AllReduceOptions& options, std::shared_ptr<MessageMemory> memory)
    : options_(options),
      codec_(make_wire_codec(options.format, at::kCPU)),
      memory_(std::move(memory)),
      chunks_(cut_shards(options)) {
  // Sent messages lie together. If the array itself is sent, nothing touches their memory, so it takes none.
  parts_.resize(chunks());
  for (size_t chunk = 0; chunk < chunks(); ++chunk) {
    for (int64_t rank = 0; rank < options_.world_size; ++rank) {
      const bool is_peer = rank != options_.rank;
      parts_[chunk].received.push_back(offsets_.add(is_peer ? message_bytes(options_.rank, chunk) : 0));
    }
  }
  for (size_t chunk = 0; chunk < chunks(); ++chunk) {
    for (int64_t rank = 0; rank < options_.world_size; ++rank) {
      parts_[chunk].sent.push_back(offsets_.add(rank != options_.rank ? message_bytes(rank, chunk) : 0));
    }
  }
}

int64_t FirstHop::message_bytes(int64_t rank, size_t chunk) const {
  return encoded_size(range(rank, chunk).numel, options_.format);
}

int64_t FirstHop::shard_bytes(int64_t rank) const {
  int64_t bytes = 0;
  for (size_t chunk = 0; chunk < chunks(); ++chunk) {
    bytes += message_bytes(rank, chunk);
  }
  return bytes;
}

int64_t FirstHop::payload_bytes() const {
  int64_t bytes = 0;
  for (int64_t rank = 0; rank < options_.world_size; ++rank) {
    bytes += rank == options_.rank ? 0 : shard_bytes(rank);
  }
  return bytes;
}

int64_t FirstHop::channel(int64_t hop, size_t chunk) const {
  return options_.first_channel + hop * kMostMessagesOfAShard + static_cast<int64_t>(chunk);
}

void FirstHop::post_receives(engine::Transport& transport) {
  placed_ = offsets_.place_in(*memory_, transport.most_in_flight());
  receives_.clear();
  for (size_t chunk = 0; chunk < chunks(); ++chunk) {
    for (int64_t distance = 1; distance < options_.world_size; ++distance) {
      const int64_t place = options_.before(distance);
      receives_.push_back(transport.post_receive(
          {placed_[parts_[chunk].received[place]], options_.group_rank(place), channel(0, chunk)}));
    }
  }
}

void FirstHop::start(engine::Transport& transport, AllReduceCall call) {
  call_ = std::move(call);
  for (size_t chunk = 0; chunk < chunks(); ++chunk) {
    for (int64_t distance = 1; distance < options_.world_size; ++distance) {
      const int64_t peer = options_.after(distance);
      call_.callbacks.call_before_encode(range(peer, chunk));
      send_part(transport, peer, chunk);
    }
  }
  for (const ElementRange& chunk : chunks_[options_.rank]) {
    call_.callbacks.call_before_encode(chunk);
  }
}

// The array changes only where the peers' means replace it, and a peer has these only after it has this rank's part.
bool FirstHop::sends_array() const {
  return options_.format == WireFormat::kFp32 && options_.order.is_identity() &&
         call_.array.scalar_type() == at::kFloat && call_.residuals.own == nullptr;
}

void FirstHop::send_part(engine::Transport& transport, int64_t peer, size_t chunk) const {
  if (sends_array()) {
    const ElementRange& part = range(peer, chunk);
    const at::Tensor bytes = call_.array.narrow(0, part.begin, part.numel).view(at::kByte);
    transport.send({bytes, options_.group_rank(peer), channel(0, chunk)});
    return;
  }
  const at::Tensor& message = placed_[parts_[chunk].sent[peer]];
  const SentRange part = sent(peer, chunk);
  codec_->encode(part.rounding(call_, 0), part.elements(call_), message.mutable_data_ptr<uint8_t>());
  transport.send({message, options_.group_rank(peer), channel(0, chunk)});
}

RankMessages FirstHop::wait_for_parts(engine::Transport& transport, size_t chunk) const {
  const auto peers = static_cast<size_t>(options_.world_size - 1);
  for (size_t i = 0; i < peers; ++i) {
    transport.wait_receive(receives_[chunk * peers + i]);
  }
  RankMessages parts(options_.world_size, nullptr);
  for (size_t i = 1; i <= peers; ++i) {
    const int64_t peer = options_.after(static_cast<int64_t>(i));
    parts[peer] = placed_[parts_[chunk].received[peer]].const_data_ptr<uint8_t>();
  }
  return parts;
}

int64_t two_shot_chunks(int64_t numel, int64_t world_size, WireFormat format) {
  const int64_t shard_bytes = encoded_size(numel, format) / world_size;
  return std::clamp<int64_t>(shard_bytes / kLeastMessageBytes, 1, kMostMessagesOfAShard);
}

std::vector<ElementRange> two_shot_result_ranges(const AllReduceOptions& options) {
  const std::vector<std::vector<ElementRange>> shards = cut_shards(options);
  std::vector<ElementRange> means;
  for (size_t chunk = 0; chunk < shards[0].size(); ++chunk) {
    means.push_back(shards[options.rank][chunk]);
    for (int64_t distance = 1; distance < options.world_size; ++distance) {
      means.push_back(shards[options.before(distance)][chunk]);
    }
  }
  return means;
}

}  // namespace narrowcast::collectives

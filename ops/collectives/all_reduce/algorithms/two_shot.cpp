// The two-shot mean.
#include <algorithm>
#include <utility>

#include "ops/collectives/all_reduce/algorithms/exchange.h"
#include "ops/collectives/all_reduce/algorithms/two_shot.h"
#include "ops/collectives/all_reduce/codec/codec.h"
#include "ops/collectives/all_reduce/codec/wire_codec.h"

namespace narrowcast::collectives {
namespace {

// While one chunk of a shard is summed, the next one is being sent. Smaller messages cost more than the overlap saves,
// and more chunks take processors from the ranks that share a machine.
constexpr int64_t kLeastMessageBytes = int64_t{256} << 10;
constexpr int64_t kMostMessagesOfAShard = 2;

std::vector<std::vector<Segment>> cut_shards(const AllReduceOptions& options) {
  const int64_t count = two_shot_chunks(options.numel, options.world_size, options.format);
  std::vector<std::vector<Segment>> chunks;
  for (const Segment& shard : cut(options.numel, options.world_size)) {
    chunks.push_back(cut(shard, count));
  }
  return chunks;
}

class TwoShot final : public AllReduceExchange {
 public:
  TwoShot(const AllReduceOptions& options, std::shared_ptr<MessageMemory> memory);

  int64_t payload_bytes() const override;
  void post_receives(engine::Transport& transport) override;
  void start(engine::Transport& transport, AllReduceCall call) override;
  void advance(engine::Transport& transport) override;
  void finish(engine::Transport& transport) override;

 private:
  // Messages of one chunk, by rank: indices into layout_. Entries for this rank itself are unused.
  struct ChunkMessages {
    std::vector<size_t> parts_sent;      // This rank's part of rank r's shard.
    std::vector<size_t> parts_received;  // Rank r's part of this rank's shard.
    std::vector<size_t> means;           // Rank r's mean; this rank's own entry is the message that it sends.
  };
  int64_t channel(int64_t hop, size_t chunk) const;
  const Segment& segment(int64_t rank, size_t chunk) const { return chunks_[rank][chunk]; }
  ChunkMessages lay_out(size_t chunk);
  void encode_part(int64_t peer, size_t chunk) const;
  void send_part(engine::Transport& transport, int64_t peer, size_t chunk) const;
  void send_mean(engine::Transport& transport, size_t chunk);
  void take_means(engine::Transport& transport, size_t chunk);
  void decode_mean(int64_t rank, size_t chunk) const;

  const AllReduceOptions options_;
  const WireCodec& codec_;
  const std::shared_ptr<MessageMemory> memory_;
  const std::vector<std::vector<Segment>> chunks_;  // By rank: the chunks of its shard.
  MessageLayout layout_;
  std::vector<ChunkMessages> messages_;  // By chunk.
  // State of the call in progress:
  AllReduceCall call_;
  std::vector<at::Tensor> placed_;
  std::vector<int64_t> part_receives_;  // By chunk, then by distance of the peer.
  std::vector<int64_t> mean_receives_;
};

TwoShot::TwoShot(const AllReduceOptions& options, std::shared_ptr<MessageMemory> memory)
    : options_(options),
      codec_(wire_codec(options.format, at::kCPU)),
      memory_(std::move(memory)),
      chunks_(cut_shards(options)) {
  for (size_t chunk = 0; chunk < chunks_[0].size(); ++chunk) {
    messages_.push_back(lay_out(chunk));
  }
}

TwoShot::ChunkMessages TwoShot::lay_out(size_t chunk) {
  ChunkMessages messages;
  for (int64_t rank = 0; rank < options_.world_size; ++rank) {
    const bool is_peer = rank != options_.rank;
    const int64_t theirs = encoded_size(segment(rank, chunk).numel, options_.format);
    const int64_t ours = encoded_size(segment(options_.rank, chunk).numel, options_.format);
    messages.parts_sent.push_back(layout_.add(is_peer ? theirs : 0));
    messages.parts_received.push_back(layout_.add(is_peer ? ours : 0));
    messages.means.push_back(layout_.add(theirs));
  }
  return messages;
}

int64_t TwoShot::payload_bytes() const {
  const auto message_bytes = [&](int64_t rank) {
    int64_t bytes = 0;
    for (const Segment& chunk : chunks_[rank]) {
      bytes += encoded_size(chunk.numel, options_.format);
    }
    return bytes;
  };
  int64_t bytes = 0;
  for (int64_t rank = 0; rank < options_.world_size; ++rank) {
    bytes += rank == options_.rank ? (options_.world_size - 1) * message_bytes(rank) : message_bytes(rank);
  }
  return bytes;
}

int64_t TwoShot::channel(int64_t hop, size_t chunk) const {
  return options_.first_channel + hop * kMostMessagesOfAShard + static_cast<int64_t>(chunk);
}

void TwoShot::start(engine::Transport& transport, AllReduceCall call) {
  call_ = std::move(call);
  for (size_t chunk = 0; chunk < messages_.size(); ++chunk) {
    for (int64_t distance = 1; distance < options_.world_size; ++distance) {
      const int64_t peer = options_.after(distance);
      call_.callbacks.prepare(segment(peer, chunk));
      encode_part(peer, chunk);
      send_part(transport, peer, chunk);
    }
  }
  for (const Segment& chunk : chunks_[options_.rank]) {
    call_.callbacks.prepare(chunk);
  }
}

void TwoShot::post_receives(engine::Transport& transport) {
  placed_ = layout_.place_in(memory_->take(layout_.total_bytes()));
  part_receives_.clear();
  mean_receives_.clear();
  for (size_t chunk = 0; chunk < messages_.size(); ++chunk) {
    for (int64_t distance = 1; distance < options_.world_size; ++distance) {
      const int64_t place = options_.before(distance);
      const int64_t peer = options_.group_rank(place);
      const at::Tensor& part = placed_[messages_[chunk].parts_received[place]];
      part_receives_.push_back(transport.post_receive({part, peer, channel(0, chunk)}));
      const at::Tensor& mean = placed_[messages_[chunk].means[place]];
      mean_receives_.push_back(transport.post_receive({mean, peer, channel(1, chunk)}));
    }
  }
}

void TwoShot::encode_part(int64_t peer, size_t chunk) const {
  encode_own(codec_, {options_.rank, segment(peer, chunk), options_.order}, call_,
             placed_[messages_[chunk].parts_sent[peer]].mutable_data_ptr<uint8_t>());
}

void TwoShot::send_part(engine::Transport& transport, int64_t peer, size_t chunk) const {
  transport.send({placed_[messages_[chunk].parts_sent[peer]], options_.group_rank(peer), channel(0, chunk)});
}

void TwoShot::advance(engine::Transport& transport) {
  for (size_t chunk = 0; chunk < messages_.size(); ++chunk) {
    send_mean(transport, chunk);
  }
}

void TwoShot::finish(engine::Transport& transport) {
  for (size_t chunk = 0; chunk < messages_.size(); ++chunk) {
    take_means(transport, chunk);
  }
  call_ = {};
}

void TwoShot::send_mean(engine::Transport& transport, size_t chunk) {
  const auto peers = static_cast<size_t>(options_.world_size - 1);
  for (size_t i = 0; i < peers; ++i) {
    transport.wait_receive(part_receives_[chunk * peers + i]);
  }
  RankMessages parts(options_.world_size, nullptr);
  for (size_t i = 1; i <= peers; ++i) {
    const int64_t peer = options_.after(static_cast<int64_t>(i));
    parts[peer] = placed_[messages_[chunk].parts_received[peer]].const_data_ptr<uint8_t>();
  }
  const at::Tensor& message = placed_[messages_[chunk].means[options_.rank]];
  encode_mean(codec_, {options_.rank, segment(options_.rank, chunk), options_.order}, call_, parts,
              message.mutable_data_ptr<uint8_t>());
  for (size_t i = 1; i <= peers; ++i) {
    transport.send({message, options_.group_rank(options_.after(static_cast<int64_t>(i))), channel(1, chunk)});
  }
}

void TwoShot::take_means(engine::Transport& transport, size_t chunk) {
  decode_mean(options_.rank, chunk);
  const int64_t peers = options_.world_size - 1;
  for (int64_t distance = 1; distance <= peers; ++distance) {
    transport.wait_receive(mean_receives_[static_cast<int64_t>(chunk) * peers + distance - 1]);
    decode_mean(options_.before(distance), chunk);
  }
}

void TwoShot::decode_mean(int64_t rank, size_t chunk) const {
  codec_.decode(placed_[messages_[chunk].means[rank]].const_data_ptr<uint8_t>(),
                {call_.array, segment(rank, chunk), nullptr, options_.order});
  call_.callbacks.tell(segment(rank, chunk));
}

}  // namespace

int64_t two_shot_chunks(int64_t numel, int64_t world_size, WireFormat format) {
  const int64_t shard_bytes = encoded_size(numel, format) / world_size;
  return std::clamp<int64_t>(shard_bytes / kLeastMessageBytes, 1, kMostMessagesOfAShard);
}

std::vector<Segment> two_shot_result_segments(const AllReduceOptions& options) {
  const std::vector<std::vector<Segment>> shards = cut_shards(options);
  std::vector<Segment> means;
  for (size_t chunk = 0; chunk < shards[0].size(); ++chunk) {
    means.push_back(shards[options.rank][chunk]);
    for (int64_t distance = 1; distance < options.world_size; ++distance) {
      means.push_back(shards[options.before(distance)][chunk]);
    }
  }
  return means;
}

std::unique_ptr<AllReduceExchange> make_two_shot(const AllReduceOptions& options,
                                                 std::shared_ptr<MessageMemory> memory) {
  return std::make_unique<TwoShot>(options, std::move(memory));
}

}  // namespace narrowcast::collectives

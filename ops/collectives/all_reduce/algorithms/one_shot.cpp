// The one-shot all-reduce.
#include <algorithm>
#include <utility>

#include "ops/collectives/all_reduce/algorithms/exchange.h"
#include "ops/collectives/all_reduce/algorithms/one_shot.h"

namespace narrowcast::collectives {
namespace {

// Elements of a chunk. While one chunk is encoded or decoded, the others are being sent. A smaller chunk costs more per
// message than the overlap saves.
constexpr int64_t kChunkNumel = int64_t{1} << 20;

class OneShot final : public AllReduceExchange {
 public:
  OneShot(const AllReduceOptions& options, std::unique_ptr<AllReduceCodec> codec, std::shared_ptr<MessageMemory> memory)
      : options_(options),
        codec_(std::move(codec)),
        memory_(std::move(memory)),
        chunks_(one_shot_result_ranges(options.numel, codec_->grain())) {
    for (const ElementRange& chunk : chunks_) {
      for (int64_t rank = 0; rank < options_.world_size; ++rank) {
        messages_.push_back(offsets_.add(codec_->message_bytes(chunk)));
      }
    }
  }

  int64_t payload_bytes() const override {
    int64_t bytes = 0;
    for (const ElementRange& chunk : chunks_) {
      bytes += codec_->message_bytes(chunk);
    }
    return bytes * (options_.world_size - 1);
  }

  int64_t advances() const override { return 0; }

  void post_receives(engine::Transport& transport) override {
    placed_ = offsets_.place_in(*memory_, transport.most_in_flight());
    receives_.clear();
    for (size_t chunk = 0; chunk < chunks_.size(); ++chunk) {
      for (int64_t distance = 1; distance < options_.world_size; ++distance) {
        const int64_t peer = options_.before(distance);
        receives_.push_back(transport.post_receive({message(chunk, peer), options_.group_rank(peer), channel(chunk)}));
      }
    }
  }

  void start(engine::Transport& transport, AllReduceCall call) override {
    call_ = std::move(call);
    for (size_t chunk = 0; chunk < chunks_.size(); ++chunk) {
      call_.callbacks.call_before_encode(chunks_[chunk]);
      codec_->encode(call_, chunks_[chunk], message(chunk, options_.rank));
      send_chunk(transport, chunk);
    }
  }

  void finish(engine::Transport& transport) override {
    const auto peers = static_cast<size_t>(options_.world_size - 1);
    std::vector<at::Tensor> by_rank(options_.world_size);
    for (size_t chunk = 0; chunk < chunks_.size(); ++chunk) {
      for (size_t i = 0; i < peers; ++i) {
        transport.wait_receive(receives_[chunk * peers + i]);
      }
      for (int64_t rank = 0; rank < options_.world_size; ++rank) {
        by_rank[rank] = message(chunk, rank);
      }
      codec_->average(call_, chunks_[chunk], by_rank);
      call_.callbacks.call_after_mean(chunks_[chunk]);
    }
    call_ = {};
  }

 private:
  int64_t channel(size_t chunk) const { return options_.first_channel + static_cast<int64_t>(chunk); }

  const at::Tensor& message(size_t chunk, int64_t rank) const {
    return placed_[messages_[chunk * options_.world_size + rank]];
  }

  void send_chunk(engine::Transport& transport, size_t chunk) const {
    for (int64_t distance = 1; distance < options_.world_size; ++distance) {
      const int64_t peer = options_.group_rank(options_.after(distance));
      transport.send({message(chunk, options_.rank), peer, channel(chunk)});
    }
  }

  const AllReduceOptions options_;
  const std::unique_ptr<AllReduceCodec> codec_;
  const std::shared_ptr<MessageMemory> memory_;
  const std::vector<ElementRange> chunks_;
  MessageOffsets offsets_;
  std::vector<size_t> messages_;  // By chunk, then by rank; this rank's own entry is the message that it sends.
  // State of the call in progress:
  AllReduceCall call_;
  std::vector<at::Tensor> placed_;
  std::vector<int64_t> receives_;  // By chunk, then by distance of the peer.
};

}  // namespace

std::vector<ElementRange> one_shot_result_ranges(int64_t numel, int64_t grain) {
  const int64_t count = std::clamp<int64_t>((numel + kChunkNumel / 2) / kChunkNumel, 1, kChannelsPerArray);
  std::vector<ElementRange> chunks = cut({0, numel}, count, grain);
  std::erase_if(chunks, [](const ElementRange& chunk) { return chunk.numel == 0; });
  return chunks;
}

std::unique_ptr<AllReduceExchange> make_one_shot(const AllReduceOptions& options, std::unique_ptr<AllReduceCodec> codec,
                                                 std::shared_ptr<MessageMemory> memory) {
  return std::make_unique<OneShot>(options, std::move(codec), std::move(memory));
}

}  // namespace narrowcast::collectives

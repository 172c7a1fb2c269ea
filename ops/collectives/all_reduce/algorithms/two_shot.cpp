// The two-shot mean.
#include "ops/collectives/all_reduce/algorithms/two_shot.h"

#include <utility>

#include "ops/collectives/all_reduce/algorithms/first_hop.h"

namespace narrowcast::collectives {
namespace {

class TwoShot final : public FirstHop {
 public:
  TwoShot(const AllReduceOptions& options, std::shared_ptr<MessageMemory> memory);

  int64_t payload_bytes() const override;
  void post_receives(engine::Transport& transport) override;
  void advance(engine::Transport& transport) override;
  void finish(engine::Transport& transport) override;

 private:
  const at::Tensor& mean(int64_t rank, size_t chunk) const { return placed(means_[chunk][rank]); }
  void send_mean(engine::Transport& transport, size_t chunk);
  void take_means(engine::Transport& transport, size_t chunk);
  void decode_mean(int64_t rank, size_t chunk) const;

  std::vector<std::vector<size_t>> means_;  // By chunk, then by rank: the messages of means.
  std::vector<int64_t> receives_;           // By chunk, then by distance of the peer.
};

TwoShot::TwoShot(const AllReduceOptions& options, std::shared_ptr<MessageMemory> memory)
    : FirstHop(options, std::move(memory)) {
  for (size_t chunk = 0; chunk < chunks(); ++chunk) {
    means_.emplace_back();
    for (int64_t rank = 0; rank < options.world_size; ++rank) {
      means_.back().push_back(offsets_.add(message_bytes(rank, chunk)));
    }
  }
}

int64_t TwoShot::payload_bytes() const {
  return FirstHop::payload_bytes() + (options().world_size - 1) * shard_bytes(options().rank);
}

void TwoShot::post_receives(engine::Transport& transport) {
  FirstHop::post_receives(transport);
  receives_.clear();
  for (size_t chunk = 0; chunk < chunks(); ++chunk) {
    for (int64_t distance = 1; distance < options().world_size; ++distance) {
      const int64_t place = options().before(distance);
      receives_.push_back(transport.post_receive({mean(place, chunk), options().group_rank(place), channel(1, chunk)}));
    }
  }
}

void TwoShot::advance(engine::Transport& transport) {
  for (size_t chunk = 0; chunk < chunks(); ++chunk) {
    send_mean(transport, chunk);
  }
}

void TwoShot::finish(engine::Transport& transport) {
  for (size_t chunk = 0; chunk < chunks(); ++chunk) {
    take_means(transport, chunk);
  }
  end_call();
}

void TwoShot::send_mean(engine::Transport& transport, size_t chunk) {
  const RankMessages parts = wait_for_parts(transport, chunk);
  const at::Tensor& message = mean(options().rank, chunk);
  encode_mean(codec(), sent(options().rank, chunk), call(), parts, message.mutable_data_ptr<uint8_t>());
  for (int64_t distance = 1; distance < options().world_size; ++distance) {
    transport.send({message, options().group_rank(options().after(distance)), channel(1, chunk)});
  }
}

void TwoShot::take_means(engine::Transport& transport, size_t chunk) {
  decode_mean(options().rank, chunk);
  const int64_t peers = options().world_size - 1;
  for (int64_t distance = 1; distance <= peers; ++distance) {
    transport.wait_receive(receives_[static_cast<int64_t>(chunk) * peers + distance - 1]);
    decode_mean(options().before(distance), chunk);
  }
}

void TwoShot::decode_mean(int64_t rank, size_t chunk) const {
  codec().decode(mean(rank, chunk).const_data_ptr<uint8_t>(),
                 {call().array, range(rank, chunk), nullptr, options().order.grain_order()});
  call().callbacks.call_after_mean(range(rank, chunk));
}

}  // namespace

std::unique_ptr<AllReduceExchange> make_two_shot(const AllReduceOptions& options,
                                                 std::shared_ptr<MessageMemory> memory) {
  return std::make_unique<TwoShot>(options, std::move(memory));
}

}  // namespace narrowcast::collectives

#include "ops/collectives/mean/announced_mean_job.h"

#include <ATen/ops/zeros.h>

#include <cstring>
#include <utility>

namespace narrowcast::collectives {
namespace {

// One of the exact elements' channels: these jobs have none.
constexpr int64_t kHeaderChannel = engine::Transport::kChannels - 1;

}  // namespace

AnnouncedMeanJob::AnnouncedMeanJob(std::string name, int64_t rank, int64_t world_size)
    : name_(std::move(name)),
      rank_(rank),
      world_size_(world_size),
      headers_(at::zeros({world_size * kCallHeaderBytes}, at::kByte)) {}

at::Tensor AnnouncedMeanJob::header(int64_t rank) const {
  return headers_.narrow(0, rank * kCallHeaderBytes, kCallHeaderBytes);
}

void AnnouncedMeanJob::set_call(const CallHeader& own, std::shared_ptr<QuantizedMeanJob> mean) {
  headers_.zero_();
  std::memcpy(header(rank_).mutable_data_ptr(), &own, sizeof(own));
  mean_ = std::move(mean);
}

std::vector<CallHeader> AnnouncedMeanJob::headers() const {
  std::vector<CallHeader> headers(world_size_);
  std::memcpy(headers.data(), headers_.const_data_ptr(), headers_.nbytes());
  return headers;
}

void AnnouncedMeanJob::start(engine::Transport& transport) {
  receives_.clear();
  for (int64_t distance = 1; distance < world_size_; ++distance) {
    const int64_t peer = (rank_ + world_size_ - distance) % world_size_;
    receives_.push_back(transport.post_receive({header(peer), peer, kHeaderChannel}));
  }
  for (int64_t distance = 1; distance < world_size_; ++distance) {
    transport.send({header(rank_), (rank_ + distance) % world_size_, kHeaderChannel});
  }
}

void AnnouncedMeanJob::advance(engine::Transport& transport) {
  for (const int64_t receive : receives_) {
    transport.wait_receive(receive);
  }
  if (mean_ != nullptr && !are_same_call(headers())) {
    mean_.reset();
  }
  if (mean_ != nullptr) {
    mean_->start(transport);
    mean_->advance(transport);
  }
}

at::Tensor AnnouncedMeanJob::finish(engine::Transport& transport) {
  return mean_ == nullptr ? at::Tensor() : std::exchange(mean_, nullptr)->finish(transport);
}

}  // namespace narrowcast::collectives

// What the quantised reference hooks let the engine do.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "hooks/bucket_codec.h"
#include "ops/engine/job.h"
#include "ops/engine/transport.h"

namespace narrowcast::hooks {

struct GatheredMeanJobOptions {
  std::string name;  // Of the job, in errors.
  int64_t rank = 0;
  int64_t world_size = 1;
  int64_t numel = 0;  // Of the bucket.
};

// Replaces a bucket by the mean over ranks of what the codec makes of it, in one hop:
//
//   Before: rank r holds its own bucket, cut into the same pieces on every rank.
//   start:  rank r posts a receive for every piece from every peer. Then it
//           encodes piece after piece and sends each to ranks r+1, r+2, ..., r-1.
//   finish: piece after piece, rank r waits for the messages of all peers, and
//           decodes and sums them in the order of ranks 0, 1, ..., W-1. Its own
//           part goes through its own codes like any other.
//   After:  every rank has computed the same mean from the same bytes: the
//           replicas are equal bit for bit.
//
// The buffers stay from step to step.
class GatheredMeanJob final : public engine::Job {
 public:
  GatheredMeanJob(std::unique_ptr<BucketCodec> codec, GatheredMeanJobOptions options);

  // What the next submission averages, in place: `numel` elements.
  void set_bucket(at::Tensor bucket) { bucket_ = std::move(bucket); }

  // Bytes that each rank sends per submission, to all peers together.
  int64_t payload_bytes() const;

  std::string name() const override { return options_.name; }
  void start(engine::Transport& transport) override;
  at::Tensor finish(engine::Transport& transport) override;

 private:
  int64_t peers() const { return options_.world_size - 1; }
  at::Tensor& message(int64_t rank, const Piece& piece) { return messages_[rank][piece.index]; }

  const std::unique_ptr<BucketCodec> codec_;
  const GatheredMeanJobOptions options_;
  const std::vector<Piece> pieces_;
  std::vector<std::vector<at::Tensor>> messages_;  // By rank and piece; this rank's own are what it sends.
  std::vector<int64_t> receives_;                  // By piece, then by distance of the peer.
  at::Tensor bucket_;
};

}  // namespace narrowcast::hooks

// How a quantised hook turns a bucket into bytes and the bytes of all ranks into
// their mean.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <vector>

namespace narrowcast::hooks {

// A run of elements of the bucket that travels as one message. Cut into pieces,
// a bucket's first codes are on the wire while its later ones are computed.
struct Piece {
  int64_t index = 0;
  int64_t begin = 0;  // First element; a multiple of the codec's piece_multiple().
  int64_t numel = 0;  // >= 1; a multiple of piece_multiple() in all pieces but the last.
};

// The codec of one bucket: it may keep what it finds between the calls of a step.
// The bucket is a contiguous CPU tensor of one of the four floating types.
class BucketCodec {
 public:
  virtual ~BucketCodec() = default;

  // How many elements belong together: pieces are cut between them. >= 1, and may exceed the bucket.
  virtual int64_t piece_multiple() const { return 1; }

  // Size of the piece's message, the same on all ranks.
  virtual int64_t message_bytes(const Piece& piece) const = 0;

  // Called once per step, before the pieces are encoded in order.
  virtual void begin(const at::Tensor& bucket) = 0;

  // Writes the piece's message.
  virtual void encode(const Piece& piece, const at::Tensor& bucket, uint8_t* message) = 0;

  // Writes the mean over ranks of the piece into `bucket`, given the piece's
  // messages of all ranks in rank order. Pieces come in order.
  virtual void decode_mean(const Piece& piece, const std::vector<const uint8_t*>& messages,
                           const at::Tensor& bucket) = 0;
};

// From this many elements on, encoding and decoding are worth a second thread.
inline constexpr int64_t kParallelGrain = 65'536;

}  // namespace narrowcast::hooks

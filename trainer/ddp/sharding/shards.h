// The shards of a list of parameters, and copies of a shard's elements.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <vector>

namespace narrowcast::sharding {

// A part of a parameter, in its memory's order.
struct Piece {
  size_t parameter = 0;  // Its index in the list.
  int64_t begin = 0;
  int64_t numel = 0;

  bool operator==(const Piece&) const = default;
};

// Pieces in the order of the list.
using Shard = std::vector<Piece>;

// Shards are cut at multiples of this number of elements of a parameter. A vector loop of an optimizer then treats each
// element as it would without shards.
inline constexpr int64_t kShardGrain = 64;

// Cuts parameters of these numbers of elements, in their order, into `count` >= 1 shards. Shard i ends near i + 1 of
// `count` equal parts, at a multiple of kShardGrain of a parameter or at its end. Pieces are not empty; a shard may be.
std::vector<Shard> cut_pieces(const std::vector<int64_t>& numels, int64_t count);

// The same with whole parameters. The largest parameters come first, each to the shard with the fewest elements so far.
std::vector<Shard> cut_whole(const std::vector<int64_t>& numels, int64_t count);

int64_t elements_of(const Shard& shard);

// The memory of a piece of `parameter`, which has no holes: [numel].
at::Tensor memory_of(const at::Tensor& parameter, const Piece& piece);

// The elements of 1-D float32 CPU tensors, one after the other.
class Elements {
 public:
  explicit Elements(std::vector<at::Tensor> tensors) : tensors_(std::move(tensors)) {}

  // Copies `numel` elements from `begin` on.
  void copy_to(float* to, int64_t begin, int64_t numel) const;
  void copy_from(const float* from, int64_t begin, int64_t numel) const;

 private:
  // Calls body(memory, offset, numel) for each part of that range, where `offset` counts from `begin`.
  template <class Body>
  void each(int64_t begin, int64_t numel, const Body& body) const;

  std::vector<at::Tensor> tensors_;
};

}  // namespace narrowcast::sharding

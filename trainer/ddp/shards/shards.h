// The shards of a list of parameters, and copies of a shard's elements.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <unordered_map>
#include <vector>

#include "ops/comm/node/node_layout.h"

namespace narrowcast::sharding {

// A part of a parameter, in its memory's order.
struct Piece {
  size_t parameter = 0;  // Its index in the list.
  int64_t begin = 0;
  int64_t numel = 0;

  bool operator==(const Piece&) const = default;
};

// Pieces in the order of the list or, if it follows buckets, of the buckets.
using Shard = std::vector<Piece>;

// Shards are cut at multiples of this number of elements of a parameter. A vector loop of an optimizer then treats each
// element as it would without shards.
inline constexpr int64_t kShardGrain = 64;

// Cuts parameters of these numbers of elements, in their order, into `count` >= 1 shards. Shard i ends near i + 1 of
// `count` equal parts, at a multiple of kShardGrain of a parameter or at its end. A shard may be empty. A parameter
// without elements is one empty piece, of the first shard: its optimizer has the same state as without shards.
std::vector<Shard> cut_pieces(const std::vector<int64_t>& numels, int64_t count);

// The same with whole parameters. The most costly parameters come first, each to the shard with the least cost so far.
// `costs`: of each parameter, >= 0; by default its number of elements.
std::vector<Shard> cut_whole(const std::vector<int64_t>& numels, int64_t count, const std::vector<int64_t>& costs = {});

int64_t elements_of(const Shard& shard);

// The place of each parameter in its list.
std::unordered_map<const at::TensorImpl*, size_t> indices_of(const std::vector<at::Tensor>& parameters);

// Whether these are the same buckets: of the same parameters, in the same order.
bool are_same(const std::vector<std::vector<at::Tensor>>& a, const std::vector<std::vector<at::Tensor>>& b);

// The shards of buckets of parameters, one for each rank: the elements whose mean a rank gets of each bucket
// (collectives::SentParts). Rank 0 also has the parameters without elements. Ranks that own no segment have empty
// shards. `indices`: the place in the list of each parameter; a parameter that is not in it belongs to no shard.
std::vector<Shard> cut_buckets(const std::vector<std::vector<at::Tensor>>& buckets,
                               const std::unordered_map<const at::TensorImpl*, size_t>& indices,
                               const node::NodeLayout& layout);

// The memory of a piece of `parameter`, which has no holes: [numel].
at::Tensor memory_of(const at::Tensor& parameter, const Piece& piece);
// The memory of a whole tensor, 1-D.
inline at::Tensor memory_of_whole(const at::Tensor& tensor) { return memory_of(tensor, {0, 0, tensor.numel()}); }

// The elements of some 1-D float32 CPU tensors, one after the other, with gaps that have no memory.
class Elements {
 public:
  Elements() = default;
  explicit Elements(const std::vector<at::Tensor>& tensors) {
    for (const at::Tensor& tensor : tensors) add(tensor);
  }

  void add(const at::Tensor& tensor);
  void add_gap(int64_t numel);
  int64_t numel() const { return numel_; }

  // Each function is for `numel` elements from `begin` on, and skips gaps.
  void copy_to(float* to, int64_t begin, int64_t numel) const;
  void copy_from(const float* from, int64_t begin, int64_t numel) const;
  void add_from(const float* from, int64_t begin, int64_t numel) const;
  void subtract_from(float* minuend, int64_t begin, int64_t numel) const;
  // These elements are not needed any more: the system gets the pages back that lie within them, and they become 0
  // there.
  void release(int64_t begin, int64_t numel) const;

 private:
  struct Run {
    at::Tensor tensor;  // Undefined for a gap.
    int64_t numel = 0;
  };
  // Calls body(memory, offset, numel) for each part of that range, where `offset` counts from `begin`.
  template <class Body>
  void each(int64_t begin, int64_t numel, const Body& body) const;

  std::vector<Run> runs_;
  int64_t numel_ = 0;
};

// Copies all elements to others of the same number; either may have gaps, which are skipped.
void copy_elements(const Elements& from, const Elements& to);

// The elements of `shard` as they lie in the memory of other pieces; gaps where these have no memory. `memory`: of each
// piece of `others`, [numel].
Elements elements_in(const Shard& shard, const Shard& others, const std::vector<at::Tensor>& memory);

}  // namespace narrowcast::sharding

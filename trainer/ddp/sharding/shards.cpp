#include "trainer/ddp/sharding/shards.h"

#include <c10/util/Exception.h>

#include <algorithm>
#include <cstring>
#include <numeric>

namespace narrowcast::sharding {
namespace {

// Where a shard that should end after `offset` elements of a parameter ends.
int64_t border_at(int64_t offset, int64_t numel) {
  return offset >= numel ? numel : offset / kShardGrain * kShardGrain;
}

}  // namespace

std::vector<Shard> cut_pieces(const std::vector<int64_t>& numels, int64_t count) {
  const int64_t elements = std::accumulate(numels.begin(), numels.end(), int64_t{0});
  std::vector<Shard> shards(count);
  int64_t first = 0;  // Elements before the parameter.
  for (size_t parameter = 0; parameter < numels.size(); ++parameter) {
    int64_t begin = 0;
    for (int64_t i = 0; i < count; ++i) {
      const int64_t end = elements / count * (i + 1) + std::min(i + 1, elements % count);
      const int64_t border = border_at(std::max<int64_t>(end - first, 0), numels[parameter]);
      if (border > begin) {
        shards[i].push_back({parameter, begin, border - begin});
        begin = border;
      }
    }
    first += numels[parameter];
  }
  return shards;
}

std::vector<Shard> cut_whole(const std::vector<int64_t>& numels, int64_t count) {
  std::vector<size_t> by_size(numels.size());
  std::iota(by_size.begin(), by_size.end(), size_t{0});
  std::ranges::stable_sort(by_size, [&](size_t a, size_t b) { return numels[a] > numels[b]; });
  std::vector<Shard> shards(count);
  std::vector<int64_t> sizes(count, 0);
  for (const size_t parameter : by_size) {
    const auto smallest = std::ranges::min_element(sizes) - sizes.begin();
    if (numels[parameter] > 0) {
      shards[smallest].push_back({parameter, 0, numels[parameter]});
      sizes[smallest] += numels[parameter];
    }
  }
  for (Shard& shard : shards) {
    std::ranges::sort(shard, {}, &Piece::parameter);
  }
  return shards;
}

int64_t elements_of(const Shard& shard) {
  int64_t elements = 0;
  for (const Piece& piece : shard) {
    elements += piece.numel;
  }
  return elements;
}

at::Tensor memory_of(const at::Tensor& parameter, const Piece& piece) {
  const at::Tensor whole = parameter.detach();
  return whole.as_strided({piece.numel}, {1}, whole.storage_offset() + piece.begin);
}

template <class Body>
void Elements::each(int64_t begin, int64_t numel, const Body& body) const {
  int64_t first = 0;  // Elements before the tensor.
  int64_t done = 0;
  for (const at::Tensor& tensor : tensors_) {
    const int64_t from = std::max<int64_t>(begin - first, 0);
    const int64_t taken = std::min(tensor.numel() - from, numel - done);
    if (taken > 0) {
      body(tensor.mutable_data_ptr<float>() + from, done, taken);
      done += taken;
    }
    first += tensor.numel();
  }
  TORCH_INTERNAL_ASSERT(done == numel, "a shard has too few elements");
}

void Elements::copy_to(float* to, int64_t begin, int64_t numel) const {
  each(begin, numel, [&](const float* memory, int64_t offset, int64_t part) {
    std::memcpy(to + offset, memory, part * sizeof(float));
  });
}

void Elements::copy_from(const float* from, int64_t begin, int64_t numel) const {
  each(begin, numel,
       [&](float* memory, int64_t offset, int64_t part) { std::memcpy(memory, from + offset, part * sizeof(float)); });
}

}  // namespace narrowcast::sharding

#include "trainer/ddp/shards/shards.h"

#include <c10/util/Exception.h>
#include <sys/mman.h>
#include <unistd.h>

#include <algorithm>
#include <cstdint>
#include <cstring>
#include <numeric>

#include "ops/collectives/all_reduce/algorithms/two_levels.h"

namespace narrowcast::sharding {
namespace {

// Parameters without elements lie in this shard.
constexpr int64_t kShardWithoutElements = 0;

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
    if (numels[parameter] == 0) {
      shards[kShardWithoutElements].push_back({parameter, 0, 0});
    }
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

std::vector<Shard> cut_whole(const std::vector<int64_t>& numels, int64_t count, const std::vector<int64_t>& costs) {
  const std::vector<int64_t>& sizes = costs.empty() ? numels : costs;
  std::vector<size_t> by_size(numels.size());
  std::iota(by_size.begin(), by_size.end(), size_t{0});
  std::ranges::stable_sort(by_size, [&](size_t a, size_t b) { return sizes[a] > sizes[b]; });
  std::vector<Shard> shards(count);
  std::vector<int64_t> sums(count, 0);
  for (const size_t parameter : by_size) {
    const auto smallest = std::ranges::min_element(sums) - sums.begin();
    const auto shard = numels[parameter] > 0 ? smallest : kShardWithoutElements;
    shards[shard].push_back({parameter, 0, numels[parameter]});
    sums[shard] += sizes[parameter];
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

std::unordered_map<const at::TensorImpl*, size_t> indices_of(const std::vector<at::Tensor>& parameters) {
  std::unordered_map<const at::TensorImpl*, size_t> indices;
  for (size_t i = 0; i < parameters.size(); ++i) {
    indices.emplace(parameters[i].unsafeGetTensorImpl(), i);
  }
  return indices;
}

bool are_same(const std::vector<std::vector<at::Tensor>>& a, const std::vector<std::vector<at::Tensor>>& b) {
  return std::ranges::equal(a, b, [](const auto& bucket, const auto& other) {
    return std::ranges::equal(bucket, other, [](const at::Tensor& x, const at::Tensor& y) { return x.is_same(y); });
  });
}

std::vector<Shard> cut_buckets(const std::vector<std::vector<at::Tensor>>& buckets,
                               const std::unordered_map<const at::TensorImpl*, size_t>& indices,
                               const node::NodeLayout& layout) {
  std::vector<Shard> shards(layout.world_size());
  for (const std::vector<at::Tensor>& bucket : buckets) {
    int64_t numel = 0;
    for (const at::Tensor& parameter : bucket) {
      numel += parameter.numel();
    }
    for (int64_t rank = 0; rank < layout.world_size(); ++rank) {
      const collectives::ElementRange owned = collectives::sent_parts(layout, rank, numel).mean;
      int64_t first = 0;  // Elements of the bucket before the parameter.
      for (const at::Tensor& parameter : bucket) {
        const int64_t begin = std::clamp<int64_t>(owned.begin - first, 0, parameter.numel());
        const int64_t end = std::clamp<int64_t>(owned.begin + owned.numel - first, 0, parameter.numel());
        const auto index = indices.find(parameter.unsafeGetTensorImpl());
        const bool is_empty = parameter.numel() == 0 && rank == kShardWithoutElements;
        if ((end > begin || is_empty) && index != indices.end()) {
          shards[rank].push_back({index->second, begin, end - begin});
        }
        first += parameter.numel();
      }
    }
  }
  return shards;
}

at::Tensor memory_of(const at::Tensor& parameter, const Piece& piece) {
  const at::Tensor whole = parameter.detach();
  return whole.as_strided({piece.numel}, {1}, whole.storage_offset() + piece.begin);
}

void Elements::add(const at::Tensor& tensor) {
  runs_.push_back({tensor, tensor.numel()});
  numel_ += tensor.numel();
}

void Elements::add_gap(int64_t numel) {
  if (numel > 0) {
    runs_.push_back({at::Tensor(), numel});
    numel_ += numel;
  }
}

template <class Body>
void Elements::each(int64_t begin, int64_t numel, const Body& body) const {
  int64_t first = 0;  // Elements before the run.
  int64_t done = 0;
  for (const Run& run : runs_) {
    const int64_t from = std::max<int64_t>(begin - first, 0);
    const int64_t taken = std::min(run.numel - from, numel - done);
    if (taken > 0) {
      if (run.tensor.defined()) {
        body(run.tensor.mutable_data_ptr<float>() + from, done, taken);
      }
      done += taken;
    }
    first += run.numel;
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

void Elements::add_from(const float* from, int64_t begin, int64_t numel) const {
  each(begin, numel, [&](float* memory, int64_t offset, int64_t part) {
    for (int64_t i = 0; i < part; ++i) {
      memory[i] += from[offset + i];
    }
  });
}

void Elements::subtract_from(float* minuend, int64_t begin, int64_t numel) const {
  each(begin, numel, [&](const float* memory, int64_t offset, int64_t part) {
    for (int64_t i = 0; i < part; ++i) {
      minuend[offset + i] -= memory[i];
    }
  });
}

// The kernel replaces the pages by pages of zeros, which take no memory until they are written.
void Elements::release(int64_t begin, int64_t numel) const {
  static const auto page = static_cast<uintptr_t>(::sysconf(_SC_PAGESIZE));
  each(begin, numel, [](const float* memory, int64_t /*offset*/, int64_t part) {
    const uintptr_t first = (reinterpret_cast<uintptr_t>(memory) + page - 1) / page * page;
    const uintptr_t end = reinterpret_cast<uintptr_t>(memory + part) / page * page;
    if (end > first) {
      static_cast<void>(::madvise(reinterpret_cast<void*>(first), end - first, MADV_DONTNEED));
    }
  });
}

void copy_elements(const Elements& from, const Elements& to) {
  constexpr int64_t kPart = int64_t{1} << 16;
  std::vector<float> part(std::min(kPart, from.numel()));
  for (int64_t begin = 0; begin < from.numel(); begin += kPart) {
    const int64_t numel = std::min(kPart, from.numel() - begin);
    to.copy_to(part.data(), begin, numel);  // Gaps in `from` keep their values.
    from.copy_to(part.data(), begin, numel);
    to.copy_from(part.data(), begin, numel);
  }
}

Elements elements_in(const Shard& shard, const Shard& others, const std::vector<at::Tensor>& memory) {
  std::unordered_map<size_t, std::vector<size_t>> by_parameter;  // Places in `others`, in the parameter's order.
  for (size_t i = 0; i < others.size(); ++i) {
    by_parameter[others[i].parameter].push_back(i);
  }
  for (auto& [parameter, places] : by_parameter) {
    std::ranges::sort(places, {}, [&](size_t i) { return others[i].begin; });
  }
  Elements elements;
  for (const Piece& piece : shard) {
    int64_t done = piece.begin;
    const int64_t end = piece.begin + piece.numel;
    for (const size_t i : by_parameter[piece.parameter]) {
      const int64_t from = std::max(done, others[i].begin);
      const int64_t to = std::min(end, others[i].begin + others[i].numel);
      if (to > from) {
        elements.add_gap(from - done);
        elements.add(memory[i].narrow(0, from - others[i].begin, to - from));
        done = to;
      }
    }
    elements.add_gap(end - done);
  }
  return elements;
}

}  // namespace narrowcast::sharding

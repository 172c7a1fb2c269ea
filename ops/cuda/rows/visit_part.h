// One thread's share of looking at every element of a part of a row.
#pragma once

#include <cstdint>

#include "ops/codec/host_device.h"
#include "ops/cuda/rows/lane.h"
#include "ops/cuda/rows/packs.h"
#include "ops/cuda/unroll.h"

namespace narrowcast::cuda {

// visit(i, x[i]) for this lane's share of 0 <= i < n, in no order that means anything; each i is one lane's. Elements
// before the first address that is a multiple of kPackBytes, and those after the last whole pack, are read one by one.
// kLoads packs are under way at a time, so that the memory has enough to do.
template <int kLoads, class T, class Visit>
NARROWCAST_HOST_DEVICE inline void visit_part(const T* x, int n, Lane lane, const Visit& visit) {
  constexpr int kCount = kPackBytes / static_cast<int>(sizeof(T));
  const int skipped = elements_to_alignment<kCount>(x);
  const int head = skipped < n ? skipped : n;
  const int packs = (n - head) / kCount;
  const int end = head + packs * kCount;
  if (lane.rank < head) visit(lane.rank, x[lane.rank]);
  if (lane.rank < n - end) visit(end + lane.rank, x[end + lane.rank]);
  const auto visit_pack = [&](int pack, const Pack<T, kCount>& loaded) {
    NARROWCAST_UNROLL
    for (int i = 0; i < kCount; ++i) visit(head + pack * kCount + i, loaded.values[i]);
  };
  int pack = lane.rank;
  for (; pack + (kLoads - 1) * lane.team < packs; pack += kLoads * lane.team) {
    Pack<T, kCount> loaded[kLoads];
    NARROWCAST_UNROLL
    for (int b = 0; b < kLoads; ++b) {
      loaded[b] = load_pack<kCount, true>(x + head + (pack + b * lane.team) * kCount);
    }
    NARROWCAST_UNROLL
    for (int b = 0; b < kLoads; ++b) visit_pack(pack + b * lane.team, loaded[b]);
  }
  for (; pack < packs; pack += lane.team) visit_pack(pack, load_pack<kCount, true>(x + head + pack * kCount));
}

}  // namespace narrowcast::cuda

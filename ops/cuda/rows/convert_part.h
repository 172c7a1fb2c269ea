// One thread's share of an elementwise function over a part of a row.
#pragma once

#include "ops/codec/host_device.h"
#include "ops/cuda/rows/lane.h"
#include "ops/cuda/rows/packs.h"
#include "ops/cuda/unroll.h"

namespace narrowcast::cuda {

// Packs that a thread loads before it uses the first, so that the memory has enough to do.
inline constexpr int kBatch = 4;

// Elements of a pack: the wider of both types fills kPackBytes.
template <class In, class Out>
inline constexpr int kPackOf = kPackBytes / static_cast<int>(sizeof(In) > sizeof(Out) ? sizeof(In) : sizeof(Out));

// out[i] = convert(in[i]) for the packs of this lane. The wider side (`in`, if both are equally wide) is aligned; the
// other one if kAligned.
template <int kLoads, bool kAligned, class In, class Out, class Convert>
NARROWCAST_HOST_DEVICE inline void convert_packs(const In* in, int packs, Out* out, Lane lane, const Convert& convert) {
  constexpr int kCount = kPackOf<In, Out>;
  constexpr bool kInAligned = kAligned || sizeof(In) >= sizeof(Out);
  constexpr bool kOutAligned = kAligned || sizeof(Out) > sizeof(In);
  for (int first = lane.rank; first < packs; first += kLoads * lane.team) {
    Pack<In, kCount> loaded[kLoads];
    NARROWCAST_UNROLL
    for (int b = 0; b < kLoads; ++b) {
      const int pack = first + b * lane.team;
      if (pack < packs) loaded[b] = load_pack<kCount, kInAligned>(in + pack * kCount);
    }
    NARROWCAST_UNROLL
    for (int b = 0; b < kLoads; ++b) {
      const int pack = first + b * lane.team;
      if (pack < packs) {
        Pack<Out, kCount> converted;
        NARROWCAST_UNROLL
        for (int i = 0; i < kCount; ++i) converted.values[i] = convert(loaded[b].values[i]);
        store_pack<kCount, kOutAligned>(converted, out + pack * kCount);
      }
    }
  }
}

// out[i] = convert(in[i]) for this lane's share of 0 <= i < n. Elements before the first address of the wider side that
// is a multiple of kPackBytes, and those after the last whole pack, go one by one; n may be 0. kLoads packs are under
// way at a time where both sides are aligned.
template <int kLoads, class In, class Out, class Convert>
NARROWCAST_HOST_DEVICE inline void convert_part(const In* in, int n, Out* out, Lane lane, const Convert& convert) {
  constexpr int kCount = kPackOf<In, Out>;
  const int skipped =
      sizeof(In) >= sizeof(Out) ? elements_to_alignment<kCount>(in) : elements_to_alignment<kCount>(out);
  const int head = skipped < n ? skipped : n;
  const int packs = (n - head) / kCount;
  const int end = head + packs * kCount;
  if (lane.rank < head) out[lane.rank] = convert(in[lane.rank]);
  if (lane.rank < n - end) out[end + lane.rank] = convert(in[end + lane.rank]);
  if (elements_to_alignment<kCount>(in + head) == 0 && elements_to_alignment<kCount>(out + head) == 0) {
    convert_packs<kLoads, true>(in + head, packs, out + head, lane, convert);
  } else {
    convert_packs<1, false>(in + head, packs, out + head, lane, convert);
  }
}

}  // namespace narrowcast::cuda

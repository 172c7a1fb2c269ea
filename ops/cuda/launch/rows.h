// Equal rows, contiguous in memory, divided among threads, and one thread's share of the work: visiting, reducing or
// converting elements. Tests compile this file for the CPU; rows.cuh launches it.
#pragma once

#include <cstdint>

#include "ops/codec/host_device.h"
#include "ops/cuda/launch/vectors.h"

namespace narrowcast::cuda {

// A thread's place in a team (a warp or a block) that works on a part of a row.
struct Lane {
  int rank;  // 0 <= rank < team
  int team;  // threads, a multiple of 32
};

// Some elements of one row, first <= i < first + size. Indices count from the first element of the first row.
struct RowPart {
  int64_t row;
  int64_t first;
  int size;
};

// All rows, divided into parts. A part lies in one row; all parts have about the same length.
struct RowParts {
  int64_t numel;      // elements of all rows; the last row may be shorter
  int64_t rows;       // >= 0
  int64_t row_size;   // elements, >= 0
  int64_t per_row;    // parts of each row, >= 1
  int64_t part_size;  // elements of each part, < 2^31; a row's last part may have fewer

  NARROWCAST_HOST_DEVICE int64_t count() const { return rows * per_row; }

  // Part 0 <= index < count(), row by row.
  NARROWCAST_HOST_DEVICE RowPart at(int64_t index) const {
    const int64_t row = row_of(index);
    const int64_t begin = (index - row * per_row) * part_size;
    const int64_t first = row * row_size + begin;
    const int64_t rest_of_row = row_size - begin;
    const int64_t left = rest_of_row < numel - first ? rest_of_row : numel - first;
    return {row, first, static_cast<int>(left < 0 ? 0 : left < part_size ? left : part_size)};
  }

 private:
  // A GPU takes about a hundred instructions for a 64-bit division, as many as a lane may take for its elements.
  NARROWCAST_HOST_DEVICE int64_t row_of(int64_t index) const {
    if (per_row == 1) return index;
    if ((index | per_row) >> 32 == 0) return static_cast<uint32_t>(index) / static_cast<uint32_t>(per_row);
    return index / per_row;
  }
};

// The fewest parts of at most `most` elements (a multiple of 16, below 2^31). All parts except a row's last one have a
// multiple of 16 elements, so that each is aligned to 16 bytes if the row is.
inline RowParts share_rows(int64_t rows, int64_t row_size, int64_t most) {
  const int64_t per_row = row_size <= most ? 1 : (row_size + most - 1) / most;
  const int64_t equal = (row_size + per_row - 1) / per_row;
  return {rows * row_size, rows, row_size, per_row, (equal + 15) / 16 * 16};
}

// The same for `numel` elements in rows of `row_size` >= 1. The last row may be shorter, and some of its parts empty.
inline RowParts share_elements(int64_t numel, int64_t row_size, int64_t most) {
  RowParts parts = share_rows((numel + row_size - 1) / row_size, row_size, most);
  parts.numel = numel;
  return parts;
}

// Parts that are long enough to keep a block busy, but at most 4096 parts per row.
inline RowParts share_rows_for_reduction(int64_t rows, int64_t row_size) {
  constexpr int64_t kPart = 8192;
  constexpr int64_t kMostParts = 4096;
  const int64_t least = (row_size / kMostParts + 16) / 16 * 16;
  return share_rows(rows, row_size, least < kPart ? kPart : least);
}

// Calls visit(i, x[i]) for this lane's share of 0 <= i < n, in no particular order; each i belongs to one lane.
// Elements before the first address that is a multiple of kPackBytes, and elements after the last whole pack, are read
// one by one. A lane requests kLoads packs at a time to keep the memory busy.
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

// Reduces this lane's share of x[0..n). A Partial is the result for some elements: default-constructed for no elements,
// add(float) adds one, and merge(a, b) joins two. The order does not change the result.
template <class Partial, class T>
NARROWCAST_HOST_DEVICE Partial reduce_share(const T* x, int n, Lane lane) {
  Partial own;
  visit_part<4>(x, n, lane, [&own](int, T value) { own.add(static_cast<float>(value)); });
  return own;
}

// Packs that a thread loads before it uses the first one, to keep the memory busy.
inline constexpr int kBatch = 4;

// Elements of a pack, of which the wider of both types fills kPackBytes.
template <class In, class Out>
inline constexpr int kPackOf = kPackBytes / static_cast<int>(sizeof(In) > sizeof(Out) ? sizeof(In) : sizeof(Out));

// out[i] = convert(in[i]) for this lane's packs. The wider side is aligned (`in`, if both are equally wide); the other
// side is aligned if kAligned.
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

// out[i] = convert(in[i]) for this lane's share of 0 <= i < n; n may be 0. Elements before the first address of the
// wider side that is a multiple of kPackBytes, and elements after the last whole pack, are converted one by one. If
// both sides are aligned, a lane requests kLoads packs at a time.
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

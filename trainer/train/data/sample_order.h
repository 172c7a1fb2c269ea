// The order in which a run uses its training samples.
#pragma once

#include <cstdint>

namespace narrowcast::data {

// Position k of a run's global order of samples is sample at(k): each epoch of `size` positions is a
// permutation of all samples of its own, chosen by the seed and the epoch. Nothing is stored per
// sample or per position, so any rank of any world can start or resume anywhere.
//
// The permutation: a Feistel network of eight rounds over the smallest even number of bits that holds
// `size` values; results outside 0..size-1 are put through it again until they fall inside (cycle
// walking; at most four passes on average).
class SampleOrder {
 public:
  // Throws c10::ValueError for size < 1.
  SampleOrder(int64_t size, uint64_t seed);

  int64_t size() const { return size_; }

  // The sample at a position >= 0 of the run. Throws c10::ValueError for a negative position.
  int64_t at(int64_t position) const;

 private:
  uint64_t permute(uint64_t value, uint64_t epoch_key) const;

  int64_t size_;
  uint64_t seed_;
  int half_bits_;
};

}  // namespace narrowcast::data

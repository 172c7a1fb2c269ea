// Philox 4x32-10, the counter-based generator behind stochastic rounding:
// J. Salmon et al., "Parallel random numbers: as easy as 1, 2, 3", SC 2011. The
// same counter and key give the same words on every machine, in any order.
#pragma once

#include <cstdint>

#include "ops/codec/host_device.h"

namespace narrowcast::codec::wire {

// Four words: a counter, or what it becomes.
struct PhiloxWords {
  uint32_t word[4];
};

inline constexpr int kPhiloxRounds = 10;
inline constexpr uint32_t kPhiloxMultiplier0 = 0xD2511F53U;
inline constexpr uint32_t kPhiloxMultiplier1 = 0xCD9E8D57U;
inline constexpr uint32_t kPhiloxWeyl0 = 0x9E3779B9U;  // Added to the key after each round.
inline constexpr uint32_t kPhiloxWeyl1 = 0xBB67AE85U;

// One round under one key.
NARROWCAST_HOST_DEVICE inline PhiloxWords philox_round(PhiloxWords c, uint32_t key0, uint32_t key1) {
  const uint64_t product0 = uint64_t{kPhiloxMultiplier0} * c.word[0];
  const uint64_t product1 = uint64_t{kPhiloxMultiplier1} * c.word[2];
  return {{static_cast<uint32_t>(product1 >> 32) ^ c.word[1] ^ key0, static_cast<uint32_t>(product1),
           static_cast<uint32_t>(product0 >> 32) ^ c.word[3] ^ key1, static_cast<uint32_t>(product0)}};
}

// The four random words of a counter; the low half of `key` is the first word of Philox's key.
NARROWCAST_HOST_DEVICE inline PhiloxWords philox(PhiloxWords counter, uint64_t key) {
  auto key0 = static_cast<uint32_t>(key);
  auto key1 = static_cast<uint32_t>(key >> 32);
  for (int round = 0; round < kPhiloxRounds; ++round) {
    counter = philox_round(counter, key0, key1);
    key0 += kPhiloxWeyl0;
    key1 += kPhiloxWeyl1;
  }
  return counter;
}

}  // namespace narrowcast::codec::wire

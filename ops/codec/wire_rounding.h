// Rounding of numbers that a wire format cannot represent.
#pragma once

#include <cstdint>

#include "ops/codec/host_device.h"

namespace narrowcast::codec::wire {

// Philox 4x32-10, the counter-based generator of stochastic rounding: J. Salmon et al., "Parallel random numbers: as
// easy as 1, 2, 3", SC 2011. The same counter and key give the same words on every machine, in any order.

// Four words: a counter, or its random words.
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

// Rounds to nearest, ties to even. If stochastic, rounds up or down at random so that the expected value is the number.
// The choice depends only on the seed, the step and the element's position: encoding the same elements of the same step
// again gives the same bytes.
struct Rounding {
  bool stochastic = false;
  uint64_t seed = 0;
  uint64_t step = 0;
  uint64_t position = 0;  // Position of the first element.

  // The same for elements that begin `elements` later.
  NARROWCAST_HOST_DEVICE Rounding at(int64_t elements) const {
    return {stochastic, seed, step, position + static_cast<uint64_t>(elements)};
  }
};

// The random words of positions 4 * quad to 4 * quad + 3, in order.
NARROWCAST_HOST_DEVICE inline PhiloxWords random_words(const Rounding& rounding, uint64_t quad) {
  return philox({{static_cast<uint32_t>(quad), static_cast<uint32_t>(quad >> 32), static_cast<uint32_t>(rounding.step),
                  static_cast<uint32_t>(rounding.step >> 32)}},
                rounding.seed);
}

// The random word of the i-th element.
NARROWCAST_HOST_DEVICE inline uint32_t random_word(const Rounding& rounding, int64_t i) {
  const uint64_t position = rounding.position + static_cast<uint64_t>(i);
  return random_words(rounding, position / 4).word[position % 4];
}

}  // namespace narrowcast::codec::wire

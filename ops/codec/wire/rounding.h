// How a number that a wire format does not have becomes one that it has.
#pragma once

#include <cstdint>

#include "ops/codec/host_device.h"
#include "ops/codec/wire/philox.h"

namespace narrowcast::codec::wire {

// To the nearest, ties to even; or, if stochastic, up or down at random, so that
// the expected value is the number. The choice depends on the seed, the step and
// the element's position alone: whoever encodes the same elements of the same
// step gets the same bytes.
struct Rounding {
  bool stochastic = false;
  uint64_t seed = 0;
  uint64_t step = 0;
  uint64_t position = 0;  // Of the first element.

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

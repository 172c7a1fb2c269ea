#include "trainer/train/data/sample_order.h"

#include <c10/util/Exception.h>

#include <algorithm>
#include <bit>

namespace narrowcast::data {
namespace {

constexpr uint64_t kRounds = 8;
constexpr uint64_t kGoldenRatio = 0x9e3779b97f4a7c15;  // 2^64 / phi: the increment of splitmix64

// The output function of splitmix64 (Steele, Lea, Flood 2014): every bit of the input reaches every bit of the result.
uint64_t mix(uint64_t x) {
  x = (x ^ (x >> 30)) * 0xbf58476d1ce4e5b9;
  x = (x ^ (x >> 27)) * 0x94d049bb133111eb;
  return x ^ (x >> 31);
}

}  // namespace

SampleOrder::SampleOrder(int64_t size, uint64_t seed) : size_(size), seed_(seed), half_bits_(1) {
  TORCH_CHECK_VALUE(size >= 1, "size must be at least 1, but is ", size);
  const int bits = std::bit_width(static_cast<uint64_t>(size - 1));
  half_bits_ = std::max(1, (bits + 1) / 2);
}

uint64_t SampleOrder::permute(uint64_t value, uint64_t epoch_key) const {
  const uint64_t mask = (uint64_t{1} << half_bits_) - 1;
  uint64_t left = value >> half_bits_;
  uint64_t right = value & mask;
  for (uint64_t round = 0; round < kRounds; ++round) {
    const uint64_t round_key = mix(epoch_key + round * kGoldenRatio);
    const uint64_t next = left ^ (mix(right ^ round_key) & mask);
    left = right;
    right = next;
  }
  return (left << half_bits_) | right;
}

int64_t SampleOrder::at(int64_t position) const {
  TORCH_CHECK_VALUE(position >= 0, "position must be at least 0, but is ", position);
  const auto epoch = static_cast<uint64_t>(position / size_);
  const uint64_t epoch_key = mix(mix(seed_ + kGoldenRatio) + epoch);
  auto value = static_cast<uint64_t>(position % size_);
  do {
    value = permute(value, epoch_key);
  } while (value >= static_cast<uint64_t>(size_));
  return static_cast<int64_t>(value);
}

}  // namespace narrowcast::data

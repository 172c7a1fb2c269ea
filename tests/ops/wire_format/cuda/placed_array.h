// Arrays at addresses that are difficult for kernels, with guard bytes around them.
#pragma once

#include <gtest/gtest.h>

#include <algorithm>
#include <cstdint>
#include <cstring>
#include <vector>

#include "tests/ops/wire_format/wire_inputs.h"

// Functions of AddressSanitizer's runtime; null in other builds.
extern "C" {
__attribute__((weak)) void __asan_poison_memory_region(const volatile void* begin, size_t size);
__attribute__((weak)) void __asan_unpoison_memory_region(const volatile void* begin, size_t size);
}

namespace narrowcast::test {

// The sizes with which each kernel is tested: parts of blocks, whole blocks, a tile of a warp, several tiles.
inline const std::vector<int64_t> kTileSizes{0, 1, 7, 31, 32, 33, 127, 128, 129, 255, 256, 257, 1000, 1024, 4097};

// n values that begin `shift` bytes after a multiple of 64, between guard bytes that must not change. AddressSanitizer
// also detects reads of guard bytes, except of up to 7 bytes immediately before the values.
template <class T>
class PlacedArray {
 public:
  PlacedArray(int64_t n, int64_t shift) : bytes_(static_cast<size_t>(n) * sizeof(T) + 4 * kMargin, kUntouched), n_(n) {
    const auto misplaced = static_cast<int64_t>(reinterpret_cast<uintptr_t>(bytes_.data()) % kMargin);
    begin_ = 2 * kMargin - misplaced + shift;
    forbid_margins();
  }
  ~PlacedArray() { allow_margins(); }
  PlacedArray(const std::vector<T>& values, int64_t shift) : PlacedArray(static_cast<int64_t>(values.size()), shift) {
    if (!values.empty()) std::memcpy(data(), values.data(), values.size() * sizeof(T));
  }
  PlacedArray(const PlacedArray&) = delete;
  PlacedArray& operator=(const PlacedArray&) = delete;

  T* data() { return reinterpret_cast<T*>(bytes_.data() + begin_); }

  // Returns the values; fails if a guard byte was changed.
  std::vector<T> values() {
    const auto untouched = [](uint8_t byte) { return byte == kUntouched; };
    allow_margins();
    EXPECT_TRUE(std::all_of(bytes_.begin(), bytes_.begin() + begin_, untouched));
    EXPECT_TRUE(std::all_of(bytes_.begin() + begin_ + size(), bytes_.end(), untouched));
    forbid_margins();
    std::vector<T> result(static_cast<size_t>(n_));
    if (n_ > 0) std::memcpy(result.data(), data(), static_cast<size_t>(size()));
    return result;
  }

 private:
  int64_t size() const { return n_ * static_cast<int64_t>(sizeof(T)); }

  void forbid_margins() const {
    if (__asan_poison_memory_region == nullptr) return;
    __asan_poison_memory_region(bytes_.data(), static_cast<size_t>(begin_));
    __asan_poison_memory_region(bytes_.data() + begin_ + size(), bytes_.size() - static_cast<size_t>(begin_ + size()));
  }
  void allow_margins() const {
    if (__asan_unpoison_memory_region != nullptr) __asan_unpoison_memory_region(bytes_.data(), bytes_.size());
  }

  static constexpr int64_t kMargin = 64;
  static constexpr uint8_t kUntouched = 0xA5;
  std::vector<uint8_t> bytes_;
  int64_t n_;
  int64_t begin_;
};

// Equal bits; any NaN equals any other NaN, because the NaN of an operation depends on the device.
inline testing::AssertionResult same_numbers(const Floats& actual, const Floats& expected) {
  if (actual.size() != expected.size()) return testing::AssertionFailure() << actual.size() << " elements";
  for (size_t i = 0; i < actual.size(); ++i) {
    if (codec::float_bits(actual[i]) == codec::float_bits(expected[i])) continue;
    if (std::isnan(actual[i]) && std::isnan(expected[i])) continue;
    return testing::AssertionFailure() << "element " << i << " is " << actual[i] << " instead of " << expected[i];
  }
  return testing::AssertionSuccess();
}

}  // namespace narrowcast::test

// Hashes of 64 bits that are the same on every machine, unlike std::hash. They detect accidental differences. Use
// SHA-256 (trainer/train/files/file_io.h) against forged contents.
#pragma once

#include <bit>
#include <cstdint>
#include <cstring>
#include <string_view>

namespace narrowcast {

inline constexpr uint64_t kHashStart = 0xcbf29ce484222325;

// The hash for short texts is FNV-1a (Fowler, Noll, Vo), byte by byte.
constexpr uint64_t fnv1a(std::string_view bytes, uint64_t hash = kHashStart) {
  for (const char byte : bytes) {
    hash = (hash ^ static_cast<uint8_t>(byte)) * 0x100000001b3;
  }
  return hash;
}

// The hash for large contents makes several GB/s. It is like FNV-1a, but over little-endian words of 8 bytes. It also
// folds the upper half of the 128-bit product into the lower half, as wyhash does, since a 64-bit product carries
// differences to higher bits only. The last bytes, fewer than 8, are hashed by fnv1a. To hash a content in parts, pass
// each part's hash to the next call; the result depends on where the parts are split.
inline uint64_t hash_of_content(std::string_view bytes, uint64_t hash = kHashStart) {
  static_assert(std::endian::native == std::endian::little);
  __extension__ using Product = unsigned __int128;
  constexpr uint64_t kGoldenRatio = 0x9e3779b97f4a7c15;  // 2^64 / phi
  for (; bytes.size() >= sizeof(uint64_t); bytes.remove_prefix(sizeof(uint64_t))) {
    uint64_t word = 0;
    std::memcpy(&word, bytes.data(), sizeof(word));
    const Product product = static_cast<Product>(hash ^ word) * kGoldenRatio;
    hash = static_cast<uint64_t>(product) ^ static_cast<uint64_t>(product >> 64);
  }
  return fnv1a(bytes, hash);
}

}  // namespace narrowcast

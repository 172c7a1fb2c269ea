// Messages of variable formats, written and read by the plain codec, which is the reference for all other code.
#pragma once

#include <cstdint>
#include <vector>

#include "ops/codec/variable_headers.h"
#include "ops/codec/variable_width.h"
#include "tests/ops/codec/instruction_sets.h"
#include "tests/ops/wire_format/variable_inputs.h"
#include "tests/ops/wire_format/wire_inputs.h"

namespace narrowcast::test {

inline int64_t length(const Floats& x) { return static_cast<int64_t>(x.size()); }

inline size_t size_of(int bits, int64_t n) { return static_cast<size_t>(codec::wire::variable_layout(bits, n).bytes); }

inline Bytes plain_encode(int bits, const Floats& x, const codec::wire::Rounding& rounding) {
  Bytes bytes(size_of(bits, length(x)));
  codec::wire::encode_variable(bits, x.data(), length(x), rounding, bytes.data());
  return bytes;
}

inline Floats plain_decode(int bits, const uint8_t* bytes, int64_t n) {
  Floats out(static_cast<size_t>(n));
  codec::wire::decode_variable(bits, bytes, n, out.data());
  return out;
}

inline std::vector<uint32_t> bits_of(const std::vector<codec::wire::BlockExtent>& extents) {
  std::vector<uint32_t> bits;
  for (const codec::wire::BlockExtent extent : extents) bits.push_back(extent.bits);
  return bits;
}

// The extents of the blocks of x.
inline std::vector<uint32_t> plain_extents(const Floats& x) {
  std::vector<uint32_t> bits;
  for (int64_t i = 0; i < codec::wire::blocks_of(length(x)); ++i) {
    bits.push_back(codec::wire::extent_of_block(x.data(), length(x), i).bits);
  }
  return bits;
}

template <class Body>
void on_each_instruction_set(const Body& body) {
  for (const int64_t target : all_instruction_sets()) {
    const UseInstructionSet use(target);
    body();
  }
}

}  // namespace narrowcast::test

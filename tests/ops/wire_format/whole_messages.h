// Whole messages in any format, on the calling thread; operators and collectives write and read them in parts.
#pragma once

#include <cstdint>
#include <memory>
#include <tuple>
#include <vector>

#include "ops/codec/wire_format.h"
#include "ops/cpu/sparse/sparse_kernels.h"
#include "ops/cpu/variable/variable_message.h"
#include "ops/cpu/wire/wire_kernels.h"

namespace narrowcast::test {

inline int bits_of(WireFormat format) { return static_cast<int>(codec::wire::code_bits(format)); }

inline std::vector<const uint8_t*> messages_by_rank(const cpu::RankParts& parts) {
  return {parts.messages, parts.messages + parts.ranks};
}

template <class T>
void wire_encode(WireFormat format, cpu::WireInput<T> input, const cpu::Rounding& rounding, uint8_t* bytes) {
  if (codec::wire::is_sparse(format)) {
    return cpu::sparse_encode<T>(codec::wire::kept_per_mille(format), input.x, input.n, bytes);
  }
  if (!codec::wire::is_variable(format)) {
    return std::get<cpu::WireEncode<T>>(cpu::wire_kernels(format).encode)(input, rounding, bytes);
  }
  cpu::VariableWriter writer(bits_of(format), rounding, input.n, bytes);
  writer.measure(0, input);
  writer.settle();
  writer.write(0, input);
}

inline void wire_decode(WireFormat format, const uint8_t* bytes, int64_t n, float* out) {
  if (codec::wire::is_sparse(format)) {
    return codec::wire::decode_sparse(codec::wire::kept_per_mille(format), bytes, n, out);
  }
  if (!codec::wire::is_variable(format)) {
    return cpu::wire_kernels(format).decode(bytes, n, out);
  }
  cpu::VariableReader(bits_of(format), bytes, n).decode(0, {out, n});
}

inline void wire_average(WireFormat format, const cpu::RankParts& parts, float* mean) {
  if (codec::wire::is_sparse(format)) {
    return cpu::sparse_average(codec::wire::kept_per_mille(format), parts, mean);
  }
  if (!codec::wire::is_variable(format)) {
    return cpu::wire_kernels(format).average(parts, mean);
  }
  cpu::VariableRankReader(bits_of(format), messages_by_rank(parts), parts.n, parts.reduction)
      .average(0, {parts.own, parts.n}, {mean, parts.n});
}

inline void wire_average_encode(WireFormat format, const cpu::RankParts& parts, const cpu::Rounding& rounding,
                                uint8_t* bytes) {
  if (codec::wire::is_sparse(format)) {
    std::vector<float> mean(static_cast<size_t>(parts.n));
    wire_average(format, parts, mean.data());
    return wire_encode<float>(format, {mean.data(), parts.n}, rounding, bytes);
  }
  if (!codec::wire::is_variable(format)) {
    return cpu::wire_kernels(format).average_encode(parts, rounding, bytes);
  }
  const cpu::VariableRankReader ranks(bits_of(format), messages_by_rank(parts), parts.n, parts.reduction);
  cpu::VariableWriter writer(bits_of(format), rounding, parts.n, bytes);
  const std::unique_ptr<float[]> mean(new float[static_cast<size_t>(parts.n)]);
  ranks.average_and_measure(writer, 0, {parts.own, parts.n}, {mean.get(), parts.n});
  writer.settle();
  writer.write(0, cpu::WireInput<float>{mean.get(), parts.n});
}

}  // namespace narrowcast::test

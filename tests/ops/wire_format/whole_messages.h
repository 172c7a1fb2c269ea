// Whole messages in any format, on the calling thread; operators and collectives write and read them in parts.
#pragma once

#include <cstdint>
#include <memory>
#include <type_traits>
#include <vector>

#include "ops/cpu/message/messages.h"

namespace narrowcast::test {

template <class T>
void wire_encode(WireFormat format, cpu::WireInput<T> input, const cpu::Rounding& rounding, uint8_t* bytes) {
  cpu::visit_messages(format, [&](const auto& messages) {
    auto writer = messages.writer(rounding, input.n, bytes);
    cpu::write_parts<std::decay_t<decltype(messages)>>(
        writer, [&](const auto& body) { body(int64_t{0}, input.n); }, [&](int64_t, int64_t) { return input; });
  });
}

inline void wire_decode(WireFormat format, const uint8_t* bytes, int64_t n, float* out) {
  cpu::visit_messages(format, [&](const auto& messages) { messages.reader(bytes, n).decode(0, {out, n}); });
}

inline void wire_average(WireFormat format, const cpu::RankParts& parts, float* mean) {
  const std::vector<const uint8_t*> by_rank(parts.messages, parts.messages + parts.ranks);
  cpu::visit_messages(format, [&](const auto& messages) {
    messages.rank_reader(by_rank, parts.n, parts.reduction).average(0, {parts.own, parts.n}, {mean, parts.n});
  });
}

inline void wire_average_encode(WireFormat format, const cpu::RankParts& parts, const cpu::Rounding& rounding,
                                uint8_t* bytes) {
  const std::vector<const uint8_t*> by_rank(parts.messages, parts.messages + parts.ranks);
  cpu::visit_messages(format, [&](const auto& messages) {
    const auto ranks = messages.rank_reader(by_rank, parts.n);
    auto writer = messages.writer(rounding, parts.n, bytes);
    if constexpr (std::decay_t<decltype(messages)>::kMeasured) {
      const std::unique_ptr<float[]> mean(new float[static_cast<size_t>(parts.n)]);
      ranks.average_and_measure(writer, 0, {parts.own, parts.n}, {mean.get(), parts.n});
      writer.settle();
      writer.write(0, cpu::WireInput<float>{mean.get(), parts.n});
    } else {
      ranks.average_to(writer, 0, parts.n, parts.own);
    }
  });
}

}  // namespace narrowcast::test

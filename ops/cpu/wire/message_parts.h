// Messages in any wire format, written and read in parts, which may be on several threads at a time. Parts begin at a
// multiple of kWireGrain elements; which there are changes no bit. Where a format's parts are messages of their own, a
// part is written or read by itself, at no cost; where they are not, what all parts have in common is found first.
#pragma once

#include <c10/util/Exception.h>

#include <cstdint>
#include <optional>
#include <vector>

#include "ops/cpu/wire/variable_message.h"
#include "ops/cpu/wire/wire_kernels.h"

namespace narrowcast::cpu {

// The first byte of element `first`, a multiple of kWireGrain, in a format whose parts are messages.
int64_t first_byte(WireFormat format, int64_t first);

// Writes the message of n elements to `bytes`.
class MessageWriter {
 public:
  MessageWriter(WireFormat format, const Rounding& rounding, int64_t n, uint8_t* bytes);

  // Whether all elements must be measured and the message be settled before any element is written.
  bool measures() const { return variable_.has_value(); }

  // Takes note of elements `first` and on. Needs measures().
  template <class T>
  void measure(int64_t first, WireInput<T> part) {
    variable_->measure(first, part);
  }

  // Writes what does not belong to one element. Needs measures().
  void settle() { variable_->settle(); }

  // Writes elements `first` and on, which are those that were measured. Formats whose parts are messages need
  // neighbours, as those of a grain are.
  template <class T>
  void write(int64_t first, WireInput<T> part) const {
    TORCH_INTERNAL_ASSERT_DEBUG_ONLY(variable_ || part.is_neighbours());
    variable_
        ? variable_->write(first, part)
        : wire_encode<T>(format_, {part.grain(0), part.n}, rounding_.at(first), bytes_ + first_byte(format_, first));
  }

  // out[i] = what element first + i, which was written, decodes to.
  void read_back(int64_t first, int64_t n, float* out) const;

 private:
  friend class RankReader;

  const WireFormat format_;
  const Rounding rounding_;
  uint8_t* const bytes_;
  std::optional<VariableWriter> variable_;
};

// Writes a message in the parts for which for_parts(body) calls body(first, elements), and input(first, elements) is
// a part's elements.
template <class ForParts, class Input>
void write_parts(MessageWriter& writer, const ForParts& for_parts, const Input& input) {
  if (writer.measures()) {
    for_parts([&](int64_t first, int64_t n) { writer.measure(first, input(first, n)); });
    writer.settle();
  }
  for_parts([&](int64_t first, int64_t n) { writer.write(first, input(first, n)); });
}

// On ATen's threads, of n elements.
template <class Input>
void write_message(MessageWriter& writer, int64_t n, const Input& input) {
  write_parts(
      writer, [n](const auto& body) { for_wire_parts(n, body); }, input);
}

// Reads the message of n elements, of any bytes, which must stay as they are.
class MessageReader {
 public:
  MessageReader(WireFormat format, const uint8_t* bytes, int64_t n);

  // Number i of `out` is element first + i. Formats whose parts are messages need neighbours, as those of a grain are.
  void decode(int64_t first, WireOutput out) const;

 private:
  const WireFormat format_;
  const uint8_t* const bytes_;
  std::optional<VariableReader> variable_;
};

// Reads the messages of n elements by rank. Null for the one rank whose part is given as float32, or for none.
class RankReader {
 public:
  RankReader(WireFormat format, const std::vector<const uint8_t*>& messages, int64_t n);

  // Number i of `mean` is element first + i of the mean, as wire_average. `own` is the part of the rank without message
  // from element `first` on, as long as the mean, and may be where that is written to. Formats whose parts are messages
  // need neighbours, as those of a grain are.
  void average(int64_t first, WireInput<float> own, WireOutput mean) const;

  // As average(), for a writer that measures: it measures the mean, as its elements from `first` on, too.
  void average_and_measure(MessageWriter& writer, int64_t first, WireInput<float> own, WireOutput mean) const;

  // Writes that mean, in one pass over memory, where the writer does not measure.
  void average_to(const MessageWriter& writer, int64_t first, int64_t n, const float* own) const;

 private:
  std::vector<const uint8_t*> parts_from(int64_t first) const;
  VariableParts variable_parts(int64_t first, WireInput<float> own) const;

  const WireFormat format_;
  const std::vector<const uint8_t*> messages_;
  std::vector<VariableReader> variable_;
  std::vector<VariableSource> sources_;
  std::vector<const VariableSource*> source_of_rank_;
};

}  // namespace narrowcast::cpu

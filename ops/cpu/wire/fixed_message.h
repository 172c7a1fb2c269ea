// Messages in formats that can be split, written and read in parts, by several threads at a time if desired. Parts
// begin at multiples of kWireGrain elements; the division into parts changes no bit. The elements of a part are
// contiguous, as those of a grain are.
#pragma once

#include <c10/util/Exception.h>

#include <cstdint>
#include <tuple>
#include <vector>

#include <narrowcast/wire_formats.h>
#include "ops/cpu/wire/wire_kernels.h"

namespace narrowcast::cpu {

// Writes a message to `bytes`.
class FixedWriter {
 public:
  FixedWriter(const WireKernels& kernels, const Rounding& rounding, uint8_t* bytes)
      : kernels_(kernels), rounding_(rounding), bytes_(bytes) {}

  // Writes elements from `first` on.
  template <class T>
  void write(int64_t first, WireInput<T> part) const {
    TORCH_INTERNAL_ASSERT_DEBUG_ONLY(part.is_neighbours());
    std::get<WireEncode<T>>(kernels_.encode)({part.grain(0), part.n}, rounding_.at(first), from(first));
  }

  // out[i] = the decoded value of element first + i, which must have been written.
  void read_back(int64_t first, int64_t n, float* out) const { kernels_.decode(from(first), n, out); }

 private:
  friend class FixedRankReader;
  uint8_t* from(int64_t first) const { return bytes_ + kernels_.first_byte(first); }

  const WireKernels& kernels_;
  const Rounding rounding_;
  uint8_t* const bytes_;
};

// Reads a message of any bytes, which must not change meanwhile.
class FixedReader {
 public:
  FixedReader(const WireKernels& kernels, const uint8_t* bytes) : kernels_(kernels), bytes_(bytes) {}

  // Element i of `out` becomes element first + i of the message.
  void decode(int64_t first, WireOutput out) const {
    TORCH_INTERNAL_ASSERT_DEBUG_ONLY(out.is_neighbours());
    kernels_.decode(bytes_ + kernels_.first_byte(first), out.n, out.grain(0));
  }

 private:
  const WireKernels& kernels_;
  const uint8_t* const bytes_;
};

// Reads the messages of all ranks. At most one pointer, in the order of ranks, is null: that rank's part is given as
// float32. With Reduction::kSum, "mean" is the sum.
class FixedRankReader {
 public:
  FixedRankReader(const WireKernels& kernels, std::vector<const uint8_t*> messages, Reduction reduction)
      : kernels_(kernels), messages_(std::move(messages)), reduction_(reduction) {}

  // Element i of `mean` becomes element first + i of the mean, computed as by WireKernels::average. `own` is the part
  // of the rank without a message, from element `first` on. It has the length of the mean and may be the memory of
  // `mean`.
  void average(int64_t first, WireInput<float> own, WireOutput mean) const {
    TORCH_INTERNAL_ASSERT_DEBUG_ONLY(own.is_neighbours() && mean.is_neighbours());
    const std::vector<const uint8_t*> parts = parts_from(first);
    const float* const own_part = own.x == nullptr ? nullptr : own.grain(0);
    kernels_.average({parts.data(), ranks(), own_part, mean.n, reduction_}, mean.grain(0));
  }

  // Writes the mean of n elements from `first` on, in one pass over memory.
  void average_to(const FixedWriter& writer, int64_t first, int64_t n, const float* own) const {
    const std::vector<const uint8_t*> parts = parts_from(first);
    kernels_.average_encode({parts.data(), ranks(), own, n, reduction_}, writer.rounding_.at(first),
                            writer.from(first));
  }

 private:
  int64_t ranks() const { return static_cast<int64_t>(messages_.size()); }
  std::vector<const uint8_t*> parts_from(int64_t first) const {
    std::vector<const uint8_t*> parts(messages_);
    for (const uint8_t*& part : parts) {
      part = part == nullptr ? nullptr : part + kernels_.first_byte(first);
    }
    return parts;
  }

  const WireKernels& kernels_;
  const std::vector<const uint8_t*> messages_;
  const Reduction reduction_;
};

// Messages of one format that can be split.
class FixedMessages {
 public:
  using Writer = FixedWriter;

  // Whether all elements must be measured, and the message settled, before any element is written.
  static constexpr bool kMeasured = false;

  // Whether the elements of a part may be non-contiguous.
  static constexpr bool kTakesAnyOrder = false;

  explicit FixedMessages(WireFormat format) : kernels_(wire_kernels(format)) {}

  FixedWriter writer(const Rounding& rounding, int64_t /*n*/, uint8_t* bytes) const {
    return {kernels_, rounding, bytes};
  }
  FixedReader reader(const uint8_t* bytes, int64_t /*n*/) const { return {kernels_, bytes}; }
  FixedRankReader rank_reader(const std::vector<const uint8_t*>& messages, int64_t /*n*/,
                              Reduction reduction = Reduction::kMean) const {
    return {kernels_, messages, reduction};
  }

 private:
  const WireKernels& kernels_;
};

}  // namespace narrowcast::cpu

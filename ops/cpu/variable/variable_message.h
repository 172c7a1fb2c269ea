// Messages in a variable format (ops/codec/variable_width.h), written and read in parts, which may be on several
// threads at a time. No element can be written before the step is known, which all elements determine; and none be read
// before its byte is known, which the widths of all blocks before it determine.
//
// Parts begin at a multiple of kWireGrain elements. Which parts there are changes no bit.
#pragma once

#include <cstdint>
#include <memory>
#include <vector>

#include "ops/codec/variable_headers.h"
#include "ops/codec/variable_width.h"
#include "ops/codec/wire_format.h"
#include "ops/cpu/variable/variable_kernels.h"
#include "ops/cpu/wire/wire_kernels.h"

namespace narrowcast::cpu {

// Writes n elements to variable_layout(bits_per_element, n).bytes, in two passes: all parts are measured, then the
// message is settled, then all parts are written.
class VariableWriter {
 public:
  VariableWriter(int bits_per_element, const Rounding& rounding, int64_t n, uint8_t* bytes);

  // Takes note of elements `first` and on.
  template <class T>
  void measure(int64_t first, WireInput<T> part) {
    variable_extents(part, extents_.get() + first / codec::wire::kVariableBlock);
  }

  // Makes a mean of these parts, and takes note of it as elements `first` and on.
  void measure_mean(int64_t first, const VariableParts& parts, WireOutput mean) {
    variable_average(parts, mean, extents_.get() + first / codec::wire::kVariableBlock);
  }

  // Writes all but codes, when all elements were measured.
  void settle();

  // Writes the codes of these elements, which must be those that were measured.
  template <class T>
  void write(int64_t first, WireInput<T> part) const {
    if (part.n > 0 && !is_nan_) {
      variable_codes(part, rounding_.at(first), grains_from(first));
    }
  }

  // out[i] = what element first + i was written as.
  void read_back(int64_t first, int64_t n, float* out) const;

 private:
  VariableGrains grains_from(int64_t first) const;
  uint16_t find_step() const;
  uint16_t step() const { return codec::wire::step_of_message(bytes_); }  // Once it is settled.

  const codec::wire::VariableLayout layout_;
  const Rounding rounding_;
  uint8_t* const bytes_;
  std::unique_ptr<BlockExtent[]> extents_;  // Of each block, and zeros up to a whole grain.
  std::vector<int64_t> byte_of_grain_;
  bool is_nan_ = false;
};

// Reads n elements from variable_layout(bits_per_element, n).bytes, which may be any and must stay as they are.
class VariableReader {
 public:
  VariableReader(int bits_per_element, const uint8_t* bytes, int64_t n);

  VariableSource source() const { return {message_, byte_of_grain_.data()}; }

  // Number i of `out` is element first + i.
  void decode(int64_t first, WireOutput out) const { variable_decode(source(), first, out); }

 private:
  codec::wire::VariableMessage message_{};
  std::vector<int64_t> byte_of_grain_;
};

// Reads the messages of n elements of all ranks, by rank. Null for the one rank whose part is given as float32, or for
// none.
class VariableRankReader {
 public:
  VariableRankReader(int bits_per_element, const std::vector<const uint8_t*>& messages, int64_t n);
  VariableRankReader(const VariableRankReader&) = delete;
  VariableRankReader& operator=(const VariableRankReader&) = delete;

  // Number i of `mean` is element first + i of the mean, as WireKernels::average. `own` is the part of the rank without
  // message from element `first` on, as long as the mean, and may be where that is written to.
  void average(int64_t first, WireInput<float> own, WireOutput mean) const {
    variable_average(parts(first, own), mean);
  }

  // As average(), and measures the mean as elements `first` and on of the writer.
  void average_and_measure(VariableWriter& writer, int64_t first, WireInput<float> own, WireOutput mean) const {
    writer.measure_mean(first, parts(first, own), mean);
  }

 private:
  VariableParts parts(int64_t first, WireInput<float> own) const {
    return {source_of_rank_.data(), static_cast<int64_t>(source_of_rank_.size()), own, first};
  }

  std::vector<VariableReader> readers_;
  std::vector<VariableSource> sources_;
  std::vector<const VariableSource*> source_of_rank_;
};

// The messages of one variable format.
class VariableMessages {
 public:
  using Writer = VariableWriter;

  // As FixedMessages'.
  static constexpr bool kMeasured = true;
  static constexpr bool kTakesAnyOrder = true;

  explicit VariableMessages(WireFormat format) : bits_(static_cast<int>(codec::wire::code_bits(format))) {}

  VariableWriter writer(const Rounding& rounding, int64_t n, uint8_t* bytes) const {
    return {bits_, rounding, n, bytes};
  }
  VariableReader reader(const uint8_t* bytes, int64_t n) const { return {bits_, bytes, n}; }
  VariableRankReader rank_reader(const std::vector<const uint8_t*>& messages, int64_t n) const {
    return {bits_, messages, n};
  }

 private:
  const int bits_;
};

}  // namespace narrowcast::cpu

// Messages in a variable format (ops/codec/variable_width.h), written and read in parts, by several threads at a time
// if desired. An element can only be written once the step is known, which depends on all elements. It can only be read
// once its offset is known, which depends on the widths of all blocks before it.
//
// Parts begin at multiples of kWireGrain elements. The division into parts changes no bit.
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

  // Measures elements from `first` on.
  template <class T>
  void measure(int64_t first, WireInput<T> part) {
    variable_extents(part, extents_.get() + first / codec::wire::kVariableBlock);
  }

  // Computes the mean of these parts, and measures it as elements from `first` on.
  void measure_mean(int64_t first, const VariableParts& parts, WireOutput mean) {
    variable_average(parts, mean, extents_.get() + first / codec::wire::kVariableBlock);
  }

  // Writes everything except the codes, after all elements were measured.
  void settle();

  // Writes the codes of these elements, which must equal the measured ones.
  template <class T>
  void write(int64_t first, WireInput<T> part) const {
    if (part.n > 0 && !is_nan_) {
      variable_codes(part, rounding_.at(first), grains_from(first));
    }
  }

  // out[i] = the decoded value of element first + i, which must have been written.
  void read_back(int64_t first, int64_t n, float* out) const;

 private:
  VariableGrains grains_from(int64_t first) const;
  uint16_t find_step() const;
  uint16_t step() const { return codec::wire::step_of_message(bytes_); }  // Valid after settle().

  const codec::wire::VariableLayout layout_;
  const Rounding rounding_;
  uint8_t* const bytes_;
  std::unique_ptr<BlockExtent[]> extents_;  // The extent of each block, and zeros up to a whole grain.
  std::vector<int64_t> byte_of_grain_;
  bool is_nan_ = false;
};

// Reads n elements from variable_layout(bits_per_element, n).bytes of any content, which must not change meanwhile.
class VariableReader {
 public:
  VariableReader(int bits_per_element, const uint8_t* bytes, int64_t n);

  VariableSource source() const { return {message_, byte_of_grain_.data()}; }

  // Element i of `out` becomes element first + i of the message.
  void decode(int64_t first, WireOutput out) const { variable_decode(source(), first, out); }

 private:
  codec::wire::VariableMessage message_{};
  std::vector<int64_t> byte_of_grain_;
};

// Reads the messages of n elements of all ranks. At most one pointer, in the order of ranks, is null: that rank's part
// is given as float32. With Reduction::kSum, "mean" is the sum.
class VariableRankReader {
 public:
  VariableRankReader(int bits_per_element, const std::vector<const uint8_t*>& messages, int64_t n, Reduction reduction);
  VariableRankReader(const VariableRankReader&) = delete;
  VariableRankReader& operator=(const VariableRankReader&) = delete;

  // Element i of `mean` becomes element first + i of the mean, computed as by WireKernels::average. `own` is the part
  // of the rank without a message, from element `first` on. It has the length of the mean and may be the memory of
  // `mean`.
  void average(int64_t first, WireInput<float> own, WireOutput mean) const {
    variable_average(parts(first, own), mean);
  }

  // Like average(), and measures the mean as elements from `first` on of the writer.
  void average_and_measure(VariableWriter& writer, int64_t first, WireInput<float> own, WireOutput mean) const {
    writer.measure_mean(first, parts(first, own), mean);
  }

 private:
  VariableParts parts(int64_t first, WireInput<float> own) const {
    return {source_of_rank_.data(), static_cast<int64_t>(source_of_rank_.size()), own, first, reduction_};
  }

  std::vector<VariableReader> readers_;
  std::vector<VariableSource> sources_;
  std::vector<const VariableSource*> source_of_rank_;
  const Reduction reduction_;
};

}  // namespace narrowcast::cpu

// Parts of an array that ranks exchange.
#pragma once

#include <ATen/core/Tensor.h>

#include <algorithm>
#include <cstdint>
#include <vector>

#include "ops/codec/wire_grain.h"

namespace narrowcast::collectives {

// Consecutive elements of an array.
struct ElementRange {
  int64_t begin = 0;  // First element.
  int64_t numel = 0;
  bool operator==(const ElementRange& other) const { return begin == other.begin && numel == other.numel; }
};

// Part number `index` of a range that is cut, in order, into `parts` of nearly equal size. Every boundary except the
// range's end is a multiple of `grain` >= 1 within the range. If there are more parts than grains, some parts are
// empty.
inline ElementRange part_of(const ElementRange& range, int64_t index, int64_t parts, int64_t grain) {
  const int64_t size = std::min(grain, std::max<int64_t>(range.numel, 1));  // The grain may exceed the array.
  const int64_t grains = (range.numel + size - 1) / size;
  const auto boundary = [&](int64_t part) {
    // grains * part / parts, without overflow.
    const int64_t before = grains / parts * part + grains % parts * part / parts;
    return std::min(before * size, range.numel);
  };
  return {range.begin + boundary(index), boundary(index + 1) - boundary(index)};
}

// Returns all of these parts.
std::vector<ElementRange> cut(const ElementRange& range, int64_t parts, int64_t grain);

// Cuts with a grain of cpu::kWireGrain, so that every part begins at a block in every wire format. If a format's
// messages can be split, the messages of the parts are parts of the range's message.
std::vector<ElementRange> cut(const ElementRange& range, int64_t parts);

// Cuts an array of `numel` elements the same way.
std::vector<ElementRange> cut(int64_t numel, int64_t parts);

// The non-empty intersections of `part` with each of the ranges, as ranges of the part.
std::vector<ElementRange> within(const std::vector<ElementRange>& ranges, const ElementRange& part);

// Ranges of an array that are sent as float32 beside it, because they are few and sensitive to rounding. Meanwhile
// they are 0 in the array: they still cost bytes there, a small share, but do not widen the scales of neighbouring
// blocks.
class ExactElements {
 public:
  // For CPU arrays. The ranges are in order, do not overlap, and lie within the arrays given below. The list may be
  // empty.
  explicit ExactElements(std::vector<ElementRange> ranges);

  // For arrays on any device. Each function below enqueues a few kernels, for any number of ranges.
  ExactElements(std::vector<ElementRange> ranges, at::Device device);

  // The values taken from the array, float32 [sum of the ranges' numel].
  const at::Tensor& values() const { return values_; }

  // `array`: 1-D, of any floating dtype. take_from calls copy_from and then clear_in, which sets the elements to 0.
  void take_from(const at::Tensor& array);
  void copy_from(const at::Tensor& array);
  void clear_in(const at::Tensor& array) const;
  void put_back(const at::Tensor& array) const;

 private:
  // Calls body(view of the array, view of the values) for each range.
  template <class Body>
  void for_ranges(const at::Tensor& array, const Body& body) const;

  const std::vector<ElementRange> ranges_;
  const at::Tensor values_;
  const at::Tensor indices_;  // int64 [numel of the values]: places in the array; undefined if built for the CPU.
};

// The elements whose mean `rank` sends in two shots.
inline ElementRange shard_of(int64_t rank, int64_t world_size, int64_t numel) {
  return part_of({0, numel}, rank, world_size, codec::wire::kWireGrain);
}

}  // namespace narrowcast::collectives

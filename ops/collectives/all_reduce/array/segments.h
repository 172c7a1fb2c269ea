// Parts of an array that ranks exchange.
#pragma once

#include <ATen/core/Tensor.h>

#include <algorithm>
#include <cstdint>
#include <vector>

#include "ops/cpu/wire/grain_order.h"

namespace narrowcast::collectives {

// Neighbouring elements of an array.
struct Segment {
  int64_t begin = 0;  // First element.
  int64_t numel = 0;
  bool operator==(const Segment& other) const { return begin == other.begin && numel == other.numel; }
};

// The part number `index` of a segment that is cut into `parts`, in order and as even as it can be with each but the
// last of them beginning and ending at a multiple of `grain` >= 1 within the segment. Parts are empty where there are
// more of them than grains.
inline Segment part_of(const Segment& segment, int64_t index, int64_t parts, int64_t grain) {
  const int64_t size = std::min(grain, std::max<int64_t>(segment.numel, 1));  // A grain may exceed all arrays.
  const int64_t grains = (segment.numel + size - 1) / size;
  const auto boundary = [&](int64_t part) {
    // grains * part / parts, without overflow.
    const int64_t before = grains / parts * part + grains % parts * part / parts;
    return std::min(before * size, segment.numel);
  };
  return {segment.begin + boundary(index), boundary(index + 1) - boundary(index)};
}

// Returns all of these parts.
std::vector<Segment> cut(const Segment& segment, int64_t parts, int64_t grain);

// Cuts with a grain of cpu::kWireGrain: then the parts begin at a block in every wire format, and where a format's
// parts are messages, theirs are the parts of the segment's message.
std::vector<Segment> cut(const Segment& segment, int64_t parts);

// Cuts an array of `numel` elements so.
std::vector<Segment> cut(int64_t numel, int64_t parts);

// What lies within `part` of each of the segments, as segments of the part; none that is empty.
std::vector<Segment> within(const std::vector<Segment>& segments, const Segment& part);

// Segments of an array that are too few and too important to be narrowed: they travel beside it, as float32. In the
// array they are 0 meanwhile: they cost bytes there, a small part of all, but do not widen the scales of their
// neighbours' blocks.
class ExactElements {
 public:
  // The segments are in order, do not overlap, and lie within the arrays given below, which are on the CPU. There may
  // be none.
  explicit ExactElements(std::vector<Segment> segments);

  // For arrays on any device: each function below enqueues a few kernels, however many segments there are.
  ExactElements(std::vector<Segment> segments, at::Device device);

  const std::vector<Segment>& segments() const { return segments_; }

  // What was taken, float32 [sum of the segments' numel].
  const at::Tensor& values() const { return values_; }

  // `array`: 1-D, of any floating dtype. take_from is copy_from and then clear_in, which leaves 0 there.
  void take_from(const at::Tensor& array);
  void copy_from(const at::Tensor& array);
  void clear_in(const at::Tensor& array) const;
  void put_back(const at::Tensor& array) const;

 private:
  // Calls body(elements of the array, where they lie in the values) for each segment.
  template <class Body>
  void for_segments(const at::Tensor& array, const Body& body) const;

  const std::vector<Segment> segments_;
  const at::Tensor values_;
  const at::Tensor indices_;  // int64 [numel of the values]: their places in the array; undefined for the CPU's way.
};

// The elements of which `rank` sends the mean in two shots.
inline Segment shard_of(int64_t rank, int64_t world_size, int64_t numel) {
  return part_of({0, numel}, rank, world_size, cpu::kWireGrain);
}

}  // namespace narrowcast::collectives

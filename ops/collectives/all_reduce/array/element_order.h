// In which order the elements of an array travel.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <vector>

#include <narrowcast/export.h>
#include <narrowcast/wire_format.h>
#include "ops/collectives/all_reduce/array/segments.h"
#include "ops/cpu/wire/wire_kernels.h"

namespace narrowcast::collectives {

// Most formats take an array as it lies. A variable one has one step for a message, and loses least where each message
// of an array has its share of all that is in it: of tensors with large gradients and of those with small ones, while
// neighbours belong to one or two tensors. So the array's grains, of cpu::kWireGrain elements, are dealt out: place p
// is grain p * stride mod grains, with a stride that has no divisor in common with the number of grains and is next to
// that number over the golden ratio. Then the grains of any run of places lie evenly over the array, however long it is
// (V. Sos, "On the theory of diophantine approximations I", 1957), and so however an exchange cuts the array into
// segments, shards and chunks. Elements behind the last whole grain stay last.
//
// All of an exchange counts in this order, residuals and random numbers as well; what reads or writes the array asks
// where the elements lie.
class NARROWCAST_EXPORT ElementOrder {
 public:
  // The array's own.
  ElementOrder() = default;

  // In which an array of so many elements travels in that format.
  static ElementOrder of(WireFormat format, int64_t numel);

  bool is_identity() const { return order_.grains == 0; }

  // As kernels take it.
  const cpu::GrainOrder& grain_order() const { return order_; }

  // Where the element lies that has that place, a multiple of cpu::kWireGrain. The rest of its grain follows it.
  int64_t element(int64_t place) const { return order_.element(place); }

  // The numbers at these places of an array, in this order: a view where that is the array's own. Places begin at such
  // a multiple, here and below, and end at one or with the array, which may be on any device.
  at::Tensor take(const at::Tensor& array, const Segment& places) const;

  // Writes numbers that have these places to an array, or adds `weight` times them to what is there.
  void put(const at::Tensor& numbers, const Segment& places, const at::Tensor& array) const;
  void add(const at::Tensor& numbers, double weight, const Segment& places, const at::Tensor& array) const;

  // The places of such segments of the array, in order; neighbours are one segment.
  std::vector<Segment> offsets_of(const std::vector<Segment>& elements) const;

 private:
  // Of some places those that are dealt out, and the rest, which has elements of the same numbers.
  struct Parts {
    Segment grains;
    Segment rest;
  };
  Parts parts_of(const Segment& places) const;
  at::Tensor grains_of(const at::Tensor& array) const;
  at::Tensor grain_indices(const Segment& grains, at::Device device) const;

  cpu::GrainOrder order_ = {};
};

}  // namespace narrowcast::collectives

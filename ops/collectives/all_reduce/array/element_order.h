// The order in which the elements of an array are sent.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <vector>

#include <narrowcast/export.h>
#include <narrowcast/wire_format.h>
#include "ops/collectives/all_reduce/array/element_range.h"
#include "ops/cpu/wire/wire_kernels.h"

namespace narrowcast::collectives {

// Most formats send an array in its own order. A variable format has one step per message and loses least if each
// message has its share of the array's large and small gradients; neighbouring elements belong to one or two tensors.
// So the array's grains of cpu::kWireGrain elements are permuted: place p holds grain p * stride mod grains. The stride
// has no divisor in common with the number of grains and is next to that number divided by the golden ratio. The grains
// of any run of places are then spread evenly over the array (V. Sos, "On the theory of diophantine approximations I",
// 1957). This holds for any cut into ranges, shards and chunks. Elements after the last whole grain stay last.
//
// Everything in an exchange counts in this order, including residuals and random numbers. Code that reads or writes the
// array looks up where the elements lie.
class NARROWCAST_EXPORT ElementOrder {
 public:
  // The array's own order.
  ElementOrder() = default;

  // The order of an array of `numel` elements in that format.
  static ElementOrder of(WireFormat format, int64_t numel);

  bool is_identity() const { return order_.is_identity(); }

  // The form that codecs and kernels take.
  const cpu::GrainOrder& grain_order() const { return order_; }

  // The index of the element at `place`, a multiple of cpu::kWireGrain. The rest of its grain follows it.
  int64_t element(int64_t place) const { return order_.element(place); }

  // The array's values at these places, in this order; a view if the order is the array's own. Here and below, places
  // begin at a multiple of cpu::kWireGrain, and end at one or at the array's end. The array may be on any device.
  at::Tensor take(const at::Tensor& array, const ElementRange& places) const;

  // `put` writes `numbers` to the array at these places; `add` adds `weight` times `numbers` to the values there.
  void put(const at::Tensor& numbers, const ElementRange& places, const at::Tensor& array) const;
  void add(const at::Tensor& numbers, double weight, const ElementRange& places, const at::Tensor& array) const;

  // The places of these ranges of the array, in ascending order; adjacent ones are joined.
  std::vector<ElementRange> offsets_of(const std::vector<ElementRange>& elements) const;

 private:
  // A run of places: the permuted grains, then the rest, whose places are element indices.
  struct Parts {
    ElementRange grains;
    ElementRange rest;
  };
  Parts parts_of(const ElementRange& places) const;
  at::Tensor grains_of(const at::Tensor& array) const;
  at::Tensor grain_indices(const ElementRange& grains, at::Device device) const;

  cpu::GrainOrder order_ = {};
};

}  // namespace narrowcast::collectives

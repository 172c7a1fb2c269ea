#include "ops/collectives/all_reduce/array/element_range.h"

#include <ATen/ops/arange.h>
#include <ATen/ops/cat.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/index_select.h>
#include <ATen/ops/zeros.h>

#include <algorithm>
#include <utility>

#include "ops/cpu/wire/wire_kernels.h"

namespace narrowcast::collectives {
namespace {

int64_t total_numel(const std::vector<ElementRange>& ranges) {
  int64_t numel = 0;
  for (const ElementRange& range : ranges) {
    numel += range.numel;
  }
  return numel;
}

at::Tensor indices_of(const std::vector<ElementRange>& ranges) {
  std::vector<at::Tensor> indices{at::empty({0}, at::kLong)};
  for (const ElementRange& range : ranges) {
    indices.push_back(at::arange(range.begin, range.begin + range.numel, at::kLong));
  }
  return at::cat(indices);
}

}  // namespace

std::vector<ElementRange> cut(const ElementRange& range, int64_t parts, int64_t grain) {
  std::vector<ElementRange> ranges;
  for (int64_t part = 0; part < parts; ++part) {
    ranges.push_back(part_of(range, part, parts, grain));
  }
  return ranges;
}

std::vector<ElementRange> cut(const ElementRange& range, int64_t parts) { return cut(range, parts, cpu::kWireGrain); }

std::vector<ElementRange> cut(int64_t numel, int64_t parts) { return cut({0, numel}, parts); }

ExactElements::ExactElements(std::vector<ElementRange> ranges)
    : ranges_(std::move(ranges)), values_(at::zeros({total_numel(ranges_)}, at::kFloat)) {}

ExactElements::ExactElements(std::vector<ElementRange> ranges, at::Device device)
    : ranges_(std::move(ranges)),
      values_(at::zeros({total_numel(ranges_)}, at::TensorOptions(at::kFloat).device(device))),
      indices_(indices_of(ranges_).to(device)) {}

std::vector<ElementRange> within(const std::vector<ElementRange>& ranges, const ElementRange& part) {
  std::vector<ElementRange> inside;
  for (const ElementRange& range : ranges) {
    const int64_t begin = std::max(range.begin, part.begin);
    const int64_t end = std::min(range.begin + range.numel, part.begin + part.numel);
    if (begin < end) {
      inside.push_back({begin - part.begin, end - begin});
    }
  }
  return inside;
}

template <class Body>
void ExactElements::for_ranges(const at::Tensor& array, const Body& body) const {
  int64_t begin = 0;
  for (const ElementRange& range : ranges_) {
    body(array.narrow(0, range.begin, range.numel), values_.narrow(0, begin, range.numel));
    begin += range.numel;
  }
}

void ExactElements::copy_from(const at::Tensor& array) {
  if (values_.numel() == 0) {
    return;
  }
  if (indices_.defined()) {
    values_.copy_(at::index_select(array, 0, indices_));
    return;
  }
  for_ranges(array, [](const at::Tensor& elements, const at::Tensor& values) { values.copy_(elements); });
}

void ExactElements::clear_in(const at::Tensor& array) const {
  if (values_.numel() == 0) {
    return;
  }
  if (indices_.defined()) {
    array.index_fill_(0, indices_, 0);
    return;
  }
  for_ranges(array, [](const at::Tensor& elements, const at::Tensor&) { elements.zero_(); });
}

void ExactElements::take_from(const at::Tensor& array) {
  copy_from(array);
  clear_in(array);
}

void ExactElements::put_back(const at::Tensor& array) const {
  if (values_.numel() == 0) {
    return;
  }
  if (indices_.defined()) {
    array.index_copy_(0, indices_, values_.to(array.scalar_type()));
    return;
  }
  for_ranges(array, [](const at::Tensor& elements, const at::Tensor& values) { elements.copy_(values); });
}

}  // namespace narrowcast::collectives

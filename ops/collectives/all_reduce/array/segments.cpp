#include "ops/collectives/all_reduce/array/segments.h"

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

int64_t total_numel(const std::vector<Segment>& segments) {
  int64_t numel = 0;
  for (const Segment& segment : segments) {
    numel += segment.numel;
  }
  return numel;
}

at::Tensor indices_of(const std::vector<Segment>& segments) {
  std::vector<at::Tensor> indices{at::empty({0}, at::kLong)};
  for (const Segment& segment : segments) {
    indices.push_back(at::arange(segment.begin, segment.begin + segment.numel, at::kLong));
  }
  return at::cat(indices);
}

}  // namespace

std::vector<Segment> cut(const Segment& segment, int64_t parts, int64_t grain) {
  std::vector<Segment> segments;
  for (int64_t part = 0; part < parts; ++part) {
    segments.push_back(part_of(segment, part, parts, grain));
  }
  return segments;
}

std::vector<Segment> cut(const Segment& segment, int64_t parts) { return cut(segment, parts, cpu::kWireGrain); }

std::vector<Segment> cut(int64_t numel, int64_t parts) { return cut({0, numel}, parts); }

ExactElements::ExactElements(std::vector<Segment> segments)
    : segments_(std::move(segments)), values_(at::zeros({total_numel(segments_)}, at::kFloat)) {}

ExactElements::ExactElements(std::vector<Segment> segments, at::Device device)
    : segments_(std::move(segments)),
      values_(at::zeros({total_numel(segments_)}, at::TensorOptions(at::kFloat).device(device))),
      indices_(indices_of(segments_).to(device)) {}

std::vector<Segment> within(const std::vector<Segment>& segments, const Segment& part) {
  std::vector<Segment> inside;
  for (const Segment& segment : segments) {
    const int64_t begin = std::max(segment.begin, part.begin);
    const int64_t end = std::min(segment.begin + segment.numel, part.begin + part.numel);
    if (begin < end) {
      inside.push_back({begin - part.begin, end - begin});
    }
  }
  return inside;
}

template <class Body>
void ExactElements::for_segments(const at::Tensor& array, const Body& body) const {
  int64_t begin = 0;
  for (const Segment& segment : segments_) {
    body(array.narrow(0, segment.begin, segment.numel), values_.narrow(0, begin, segment.numel));
    begin += segment.numel;
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
  for_segments(array, [](const at::Tensor& elements, const at::Tensor& values) { values.copy_(elements); });
}

void ExactElements::clear_in(const at::Tensor& array) const {
  if (values_.numel() == 0) {
    return;
  }
  if (indices_.defined()) {
    array.index_fill_(0, indices_, 0);
    return;
  }
  for_segments(array, [](const at::Tensor& elements, const at::Tensor&) { elements.zero_(); });
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
  for_segments(array, [](const at::Tensor& elements, const at::Tensor& values) { elements.copy_(values); });
}

}  // namespace narrowcast::collectives

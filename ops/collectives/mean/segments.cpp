#include "ops/collectives/mean/segments.h"

#include <ATen/ops/zeros.h>

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

ExactElements::ExactElements(std::vector<Segment> segments, at::Device device)
    : segments_(std::move(segments)),
      values_(at::zeros({total_numel(segments_)}, at::TensorOptions(at::kFloat).device(device))) {}

void ExactElements::take_from(const at::Tensor& array) {
  int64_t begin = 0;
  for (const Segment& segment : segments_) {
    const at::Tensor elements = array.narrow(0, segment.begin, segment.numel);
    values_.narrow(0, begin, segment.numel).copy_(elements);
    elements.zero_();
    begin += segment.numel;
  }
}

void ExactElements::put_back(const at::Tensor& array) const {
  int64_t begin = 0;
  for (const Segment& segment : segments_) {
    array.narrow(0, segment.begin, segment.numel).copy_(values_.narrow(0, begin, segment.numel));
    begin += segment.numel;
  }
}

}  // namespace narrowcast::collectives

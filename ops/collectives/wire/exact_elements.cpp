#include "ops/collectives/wire/exact_elements.h"

#include <ATen/ops/zeros.h>

#include <utility>

namespace narrowcast::collectives {
namespace {

int64_t count(const std::vector<Segment>& segments) {
  int64_t numel = 0;
  for (const Segment& segment : segments) {
    numel += segment.numel;
  }
  return numel;
}

}  // namespace

ExactElements::ExactElements(std::vector<Segment> segments, at::Device device)
    : segments_(std::move(segments)),
      values_(at::zeros({count(segments_)}, at::TensorOptions(at::kFloat).device(device))) {}

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

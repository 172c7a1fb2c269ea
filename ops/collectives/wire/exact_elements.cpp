#include "ops/collectives/wire/exact_elements.h"

#include <ATen/ops/zeros.h>

#include <utility>

namespace narrowcast::collectives {
namespace {

int64_t count(const std::vector<Run>& runs) {
  int64_t numel = 0;
  for (const Run& run : runs) {
    numel += run.numel;
  }
  return numel;
}

}  // namespace

ExactElements::ExactElements(std::vector<Run> runs, at::Device device)
    : runs_(std::move(runs)), values_(at::zeros({count(runs_)}, at::TensorOptions(at::kFloat).device(device))) {}

void ExactElements::take_from(const at::Tensor& array) {
  int64_t begin = 0;
  for (const Run& run : runs_) {
    const at::Tensor elements = array.narrow(0, run.begin, run.numel);
    values_.narrow(0, begin, run.numel).copy_(elements);
    elements.zero_();
    begin += run.numel;
  }
}

void ExactElements::put_back(const at::Tensor& array) const {
  int64_t begin = 0;
  for (const Run& run : runs_) {
    array.narrow(0, run.begin, run.numel).copy_(values_.narrow(0, begin, run.numel));
    begin += run.numel;
  }
}

}  // namespace narrowcast::collectives

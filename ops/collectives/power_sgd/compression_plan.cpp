#include "ops/collectives/power_sgd/compression_plan.h"

#include <ATen/ops/stack.h>

#include <algorithm>
#include <cmath>
#include <utility>

namespace narrowcast::collectives {
namespace {

struct Shape {
  int64_t rows = 0;
  int64_t columns = 0;
  int64_t rank = 0;
};

Shape shape_of(const ShapedRange& gradient, int64_t rank) {
  if (gradient.range.numel == 0 || gradient.sizes.empty()) {
    return {};
  }
  const int64_t rows = gradient.sizes[0];
  const int64_t columns = gradient.range.numel / rows;
  return {rows, columns, std::min({rows, columns, rank})};
}

bool shrinks(const Shape& shape, double min_rate) {
  const auto sent = static_cast<double>((shape.rows + shape.columns) * shape.rank);
  return sent * min_rate < static_cast<double>(shape.rows * shape.columns);
}

// The batch for the next matrix of that shape. It is created if necessary.
MatrixBatch& batch_for(std::vector<MatrixBatch>& batches, const Shape& shape) {
  const auto found = std::ranges::find_if(
      batches, [&](const MatrixBatch& batch) { return batch.rows == shape.rows && batch.columns == shape.columns; });
  if (found != batches.end()) {
    return *found;
  }
  batches.push_back({.rows = shape.rows, .columns = shape.columns, .rank = shape.rank});
  return batches.back();
}

// One batch per matrix, in the order of the batches.
std::vector<MatrixBatch> single_matrices(const std::vector<MatrixBatch>& batches) {
  std::vector<MatrixBatch> result;
  for (const MatrixBatch& batch : batches) {
    for (size_t i = 0; i < batch.begins.size(); ++i) {
      result.push_back(batch);
      result.back().begins = {batch.begins[i]};
      result.back().members = {batch.members[i]};
    }
  }
  return result;
}

void place_factors(CompressionPlan& plan) {
  for (MatrixBatch& batch : plan.batches) {
    batch.p_begin = plan.p_numel;
    batch.q_begin = plan.q_numel;
    plan.p_numel += batch.count() * batch.rows * batch.rank;
    plan.q_numel += batch.count() * batch.columns * batch.rank;
  }
}

// Collects the ranges between the matrices and after the last one.
void place_plain(CompressionPlan& plan) {
  std::vector<ElementRange> matrices;
  for (const MatrixBatch& batch : plan.batches) {
    for (const int64_t begin : batch.begins) {
      matrices.push_back({begin, batch.numel()});
    }
  }
  std::ranges::sort(matrices, {}, &ElementRange::begin);
  matrices.push_back({plan.numel, 0});
  int64_t next = 0;
  for (const ElementRange& matrix : matrices) {
    if (matrix.begin > next) {
      plan.plain.push_back({next, matrix.begin - next});
      plan.plain_numel += matrix.begin - next;
    }
    next = matrix.begin + matrix.numel;
  }
}

}  // namespace

at::Tensor MatrixBatch::matrices(const at::Tensor& array) const {
  std::vector<at::Tensor> views;
  for (int64_t i = 0; i < count(); ++i) {
    views.push_back(matrix_of(array, i));
  }
  return views.size() == 1 ? views[0].unsqueeze(0) : at::stack(views);
}

int64_t CompressionPlan::matrices() const {
  int64_t sum = 0;
  for (const MatrixBatch& batch : batches) {
    sum += batch.count();
  }
  return sum;
}

void CompressionPlan::gather_plain(const at::Tensor& array, const at::Tensor& together) const {
  int64_t begin = 0;
  for (const ElementRange& range : plain) {
    together.narrow(0, begin, range.numel).copy_(array.narrow(0, range.begin, range.numel));
    begin += range.numel;
  }
}

void CompressionPlan::scatter_plain(const at::Tensor& together, const at::Tensor& array) const {
  int64_t begin = 0;
  for (const ElementRange& range : plain) {
    array.narrow(0, range.begin, range.numel).copy_(together.narrow(0, begin, range.numel));
    begin += range.numel;
  }
}

CompressionPlan plan_by_layer(int64_t numel, const std::vector<ShapedRange>& ranges,
                              const CompressionOptions& options) {
  CompressionPlan plan{.numel = numel, .array_numel = numel};
  for (size_t i = 0; i < ranges.size(); ++i) {
    const Shape shape = shape_of(ranges[i], options.rank);
    if (shrinks(shape, options.min_rate)) {
      MatrixBatch& batch = batch_for(plan.batches, shape);
      batch.begins.push_back(ranges[i].range.begin);
      batch.members.push_back(i);
    }
  }
  if (!options.batch) {
    plan.batches = single_matrices(plan.batches);
  }
  place_factors(plan);
  place_plain(plan);
  return plan;
}

CompressionPlan plan_of_square(int64_t numel, int64_t rank) {
  auto side = static_cast<int64_t>(std::ceil(std::sqrt(static_cast<double>(numel))));
  CompressionPlan plan{.numel = numel, .array_numel = side * side};
  if (numel > 0) {
    plan.batches = {{.rows = side, .columns = side, .rank = std::min(side, rank), .begins = {0}, .members = {0}}};
    place_factors(plan);
  }
  return plan;
}

}  // namespace narrowcast::collectives

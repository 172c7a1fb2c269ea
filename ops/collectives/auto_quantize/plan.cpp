#include "ops/collectives/auto_quantize/plan.h"

#include <c10/util/Exception.h>

#include <algorithm>
#include <numeric>

#include "ops/collectives/auto_quantize/agreement.h"
#include "ops/comm/groups/arguments.h"
#include "ops/comm/groups/group.h"
#include "ops/operators/quantize_tensor_meta.h"
#include "ops/operators/without_derivative.h"

namespace narrowcast::collectives {
namespace {

void check_serves(const Group& group, at::Device device) {
  TORCH_CHECK_VALUE(moves_tensors_on(device.type(), group), "group ", group->getGroupName(),
                    " has no backend for tensors on ", device);
}

void check_one_per_rank(const char* name, at::TensorList tensors, int64_t world_size) {
  TORCH_CHECK_VALUE(static_cast<int64_t>(tensors.size()) == world_size, name, " must hold one tensor per rank, ",
                    world_size, ", but holds ", tensors.size());
}

void check_outputs_writable(at::TensorList inputs, at::TensorList outputs) {
  const auto needs_gradient = autograd::needs_gradient(inputs, outputs);
  for (size_t i = 0; i < outputs.size(); ++i) {
    const std::string name = "outputs[" + std::to_string(i) + "]";
    check_writable(name, outputs[i]);
    autograd::check_output(name, outputs[i], needs_gradient);
  }
}

std::vector<int64_t> element_counts(at::TensorList tensors) {
  std::vector<int64_t> counts;
  std::transform(tensors.begin(), tensors.end(), std::back_inserter(counts),
                 [](const at::Tensor& tensor) { return tensor.numel(); });
  return counts;
}

// A tensor that is split among the ranks, and the names of both in messages.
struct SplitArgument {
  const char* tensor_name;
  const at::Tensor& tensor;
  const char* splits_name;
};

std::vector<int64_t> equal_rows(SplitArgument argument, int64_t world_size) {
  const int64_t rows = argument.tensor.size(0);
  TORCH_CHECK_VALUE(rows % world_size == 0, argument.tensor_name, " has ", rows,
                    " rows, which cannot be split equally among ", world_size, " ranks; give ", argument.splits_name);
  return std::vector<int64_t>(static_cast<size_t>(world_size), rows / world_size);
}

void check_rows(SplitArgument argument, at::IntArrayRef rows, int64_t world_size) {
  TORCH_CHECK_VALUE(static_cast<int64_t>(rows.size()) == world_size, argument.splits_name,
                    " must have one entry per rank, ", world_size, ", but is ", rows);
  TORCH_CHECK_VALUE(std::all_of(rows.begin(), rows.end(), [](int64_t entry) { return entry >= 0; }),
                    argument.splits_name, " must not be negative, but is ", rows);
  int64_t left = argument.tensor.size(0);
  for (const int64_t entry : rows) {  // A sum could overflow.
    left = entry > left ? -1 : left - entry;
    if (left < 0) break;
  }
  TORCH_CHECK_VALUE(left == 0, argument.splits_name, " is ", rows, " but ", argument.tensor_name, " has ",
                    argument.tensor.size(0), " rows");
}

// Elements per rank. An empty list means equal parts, as in PyTorch's all-to-all.
std::vector<int64_t> split_counts(SplitArgument argument, at::OptionalIntArrayRef splits, int64_t world_size) {
  std::vector<int64_t> counts;
  if (splits.has_value() && !splits->empty()) {
    check_rows(argument, *splits, world_size);
    counts = splits->vec();
  } else {
    counts = equal_rows(argument, world_size);
  }
  const at::IntArrayRef row = argument.tensor.sizes().slice(1);
  const int64_t row_numel = std::accumulate(row.begin(), row.end(), int64_t{1}, std::multiplies<>());
  for (int64_t& count : counts) {
    count *= row_numel;
  }
  return counts;
}

Exchange unplanned(Collective collective, const Group& group) {
  TORCH_CHECK_VALUE(group != nullptr, "group is null");
  return {.collective = collective,
          .encoding = {},
          .group = group,
          .rank = group->getRank(),
          .sources = {},
          .targets = {},
          .sends = {},
          .receives = {}};
}

// `complete` fills in the exchange. If it throws for this rank's arguments, all ranks throw its error.
template <class Complete>
Exchange plan(Collective collective, const Group& group, const Complete& complete) {
  Exchange exchange = unplanned(collective, group);
  const auto refusal = refusal_of([&] { complete(exchange); });
  if (refusal.has_value()) {
    refuse(unplanned(collective, group), *refusal);
  }
  return exchange;
}

}  // namespace

Exchange plan_all_gather(const Group& group, const EncodingArgument& encoding, at::TensorList outputs,
                         const at::Tensor& input) {
  return plan(Collective::kAllGather, group, [&](Exchange& exchange) {
    exchange.encoding = encoding();
    meta::check_all_gather(outputs, input);
    check_serves(group, input.device());
    check_one_per_rank("outputs", outputs, group->getSize());
    const int64_t rank = exchange.rank;
    TORCH_CHECK_VALUE(outputs[rank].sizes() == input.sizes(), "outputs[", rank, "] of rank ", rank, " has shape ",
                      outputs[rank].sizes(), " but its input has shape ", input.sizes());
    check_outputs_writable(input, outputs);
    exchange.sources = {input};
    exchange.targets = outputs.vec();
    exchange.sends.assign(outputs.size(), input.numel());
    exchange.receives = element_counts(outputs);
  });
}

Exchange plan_all_to_all(const Group& group, const EncodingArgument& encoding, at::TensorList outputs,
                         at::TensorList inputs) {
  return plan(Collective::kAllToAll, group, [&](Exchange& exchange) {
    exchange.encoding = encoding();
    meta::check_all_to_all(outputs, inputs);
    check_serves(group, outputs[0].device());
    check_one_per_rank("outputs", outputs, group->getSize());
    check_one_per_rank("inputs", inputs, group->getSize());
    check_outputs_writable(inputs, outputs);
    exchange.sources = inputs.vec();
    exchange.targets = outputs.vec();
    exchange.sends = element_counts(inputs);
    exchange.receives = element_counts(outputs);
  });
}

Exchange plan_all_to_all_single(const Group& group, const EncodingArgument& encoding, const at::Tensor& output,
                                const at::Tensor& input, Splits splits) {
  return plan(Collective::kAllToAllSingle, group, [&](Exchange& exchange) {
    exchange.encoding = encoding();
    meta::check_all_to_all_single(output, input);
    check_serves(group, output.device());
    check_writable("output", output);
    autograd::check_output("output", output, autograd::needs_gradient(input, output));
    exchange.sources = {input};
    exchange.targets = {output};
    exchange.sends = split_counts({"input", input, "input_split_sizes"}, splits.input, group->getSize());
    exchange.receives = split_counts({"output", output, "output_split_sizes"}, splits.output, group->getSize());
  });
}

}  // namespace narrowcast::collectives

#include <narrowcast/auto_quantize.h>

#include <torch/library.h>

#include <optional>
#include <string_view>
#include <utility>
#include <vector>

#include "ops/collectives/auto_quantize/exchange.h"
#include "ops/collectives/auto_quantize/plan.h"
#include "ops/comm/groups/group.h"
#include "ops/operators/quantize_tensor_meta.h"
#include "ops/operators/without_derivative.h"

namespace narrowcast {
namespace {

using collectives::Encoding;
using collectives::Exchange;
using collectives::Group;
using collectives::Splits;
using collectives::Work;

// Calls body(exchange) as an operator without a derivative.
template <class Body>
void without_derivative(Exchange exchange, const Body& body) {
  const std::vector<at::Tensor> sources = exchange.sources;
  const std::vector<at::Tensor> targets = exchange.targets;
  const std::string name = std::string("narrowcast::") + collectives::operator_name(exchange.collective);
  autograd::write_without_derivative(name, sources, targets, [&] { body(std::move(exchange)); });
}

collectives::EncodingArgument always(Encoding encoding) {
  return [encoding] { return encoding; };
}

void run_planned(Exchange exchange) {
  without_derivative(std::move(exchange), [](Exchange ready) { collectives::run(std::move(ready)); });
}

Work start_planned(Exchange exchange) {
  Work work;
  without_derivative(std::move(exchange), [&work](Exchange ready) {
    work = collectives::decode_when_complete(collectives::start(std::move(ready)));
  });
  return work;
}

}  // namespace

void AutoQuantizedAllGather::operator()(at::TensorList outputs, const at::Tensor& input, const Group& group) const {
  run_planned(collectives::plan_all_gather(group, always(encoding_), outputs, input));
}

Work AutoQuantizedAllGather::async(at::TensorList outputs, const at::Tensor& input, const Group& group) const {
  return start_planned(collectives::plan_all_gather(group, always(encoding_), outputs, input));
}

void AutoQuantizedAllToAll::operator()(at::TensorList outputs, at::TensorList inputs, const Group& group) const {
  run_planned(collectives::plan_all_to_all(group, always(encoding_), outputs, inputs));
}

Work AutoQuantizedAllToAll::async(at::TensorList outputs, at::TensorList inputs, const Group& group) const {
  return start_planned(collectives::plan_all_to_all(group, always(encoding_), outputs, inputs));
}

void AutoQuantizedAllToAllSingle::operator()(const at::Tensor& output, const at::Tensor& input,
                                             at::OptionalIntArrayRef output_split_sizes,
                                             at::OptionalIntArrayRef input_split_sizes, const Group& group) const {
  const Splits splits{output_split_sizes, input_split_sizes};
  run_planned(collectives::plan_all_to_all_single(group, always(encoding_), output, input, splits));
}

void AutoQuantizedAllToAllSingle::operator()(const at::Tensor& output, const at::Tensor& input,
                                             const Group& group) const {
  run_planned(collectives::plan_all_to_all_single(group, always(encoding_), output, input, {}));
}

Work AutoQuantizedAllToAllSingle::async(const at::Tensor& output, const at::Tensor& input,
                                        at::OptionalIntArrayRef output_split_sizes,
                                        at::OptionalIntArrayRef input_split_sizes, const Group& group) const {
  const Splits splits{output_split_sizes, input_split_sizes};
  return start_planned(collectives::plan_all_to_all_single(group, always(encoding_), output, input, splits));
}

Work AutoQuantizedAllToAllSingle::async(const at::Tensor& output, const at::Tensor& input, const Group& group) const {
  return start_planned(collectives::plan_all_to_all_single(group, always(encoding_), output, input, {}));
}

}  // namespace narrowcast

namespace narrowcast::collectives {
namespace {

// The operators auto_quantize_*, for all devices at once: they use only the dispatcher and the process group. They are
// registered as CompositeExplicitAutograd, which also serves calls with an empty list. In such a call no tensor has a
// device, so that CPU and CUDA kernels would not be called, and the error would be the dispatcher's. The meta kernels
// take precedence.

// The arguments that select the encoding of the tensors.
struct Way {
  std::string_view qtype;
  std::optional<double> quant_loss;
  bool async_op;

  Encoding operator()() const {
    if (async_op) {
      meta::refuse_async_op();
    }
    return {parse_dquant_type(qtype), quant_loss};
  }
};

void run_all_gather(at::TensorList outputs, const at::Tensor& input, std::string_view qtype,
                    std::string_view group_name, std::optional<double> quant_loss, bool async_op) {
  run(plan_all_gather(find_group(group_name), Way{qtype, quant_loss, async_op}, outputs, input));
}

void run_all_to_all(at::TensorList outputs, at::TensorList inputs, std::string_view qtype, std::string_view group_name,
                    std::optional<double> quant_loss, bool async_op) {
  run(plan_all_to_all(find_group(group_name), Way{qtype, quant_loss, async_op}, outputs, inputs));
}

void run_all_to_all_single(const at::Tensor& output, const at::Tensor& input, std::string_view qtype,
                           std::string_view group_name, at::OptionalIntArrayRef output_split_sizes,
                           at::OptionalIntArrayRef input_split_sizes, std::optional<double> quant_loss, bool async_op) {
  run(plan_all_to_all_single(find_group(group_name), Way{qtype, quant_loss, async_op}, output, input,
                             {output_split_sizes, input_split_sizes}));
}

}  // namespace

TORCH_LIBRARY_IMPL(narrowcast, CompositeExplicitAutograd, m) {
  m.impl("auto_quantize_all_gather", &run_all_gather);
  m.impl("auto_quantize_all_to_all", &run_all_to_all);
  m.impl("auto_quantize_all_to_all_single", &run_all_to_all_single);
}

}  // namespace narrowcast::collectives

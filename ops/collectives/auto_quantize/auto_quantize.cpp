#include <narrowcast/auto_quantize.h>

#include <c10/util/Exception.h>

#include <utility>
#include <vector>

#include "ops/collectives/auto_quantize/decoding_work.h"
#include "ops/collectives/auto_quantize/exchange.h"
#include "ops/without_derivative.h"

namespace narrowcast {
namespace {

using collectives::Encoding;
using collectives::Exchange;
using collectives::Group;
using collectives::Splits;
using collectives::Work;

Encoding checked(DQuantType qtype, std::optional<double> quant_loss) {
  to_string(qtype);
  return {qtype, quant_loss};
}

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

AutoQuantizedAllGather auto_quantize(collectives::AllGather, DQuantType qtype, std::optional<double> quant_loss) {
  return AutoQuantizedAllGather(checked(qtype, quant_loss));
}

AutoQuantizedAllToAll auto_quantize(collectives::AllToAll, DQuantType qtype, std::optional<double> quant_loss) {
  return AutoQuantizedAllToAll(checked(qtype, quant_loss));
}

AutoQuantizedAllToAllSingle auto_quantize(collectives::AllToAllSingle, DQuantType qtype,
                                          std::optional<double> quant_loss) {
  return AutoQuantizedAllToAllSingle(checked(qtype, quant_loss));
}

}  // namespace narrowcast

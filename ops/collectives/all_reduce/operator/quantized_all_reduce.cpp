#include <narrowcast/quantized_all_reduce.h>

#include <c10/util/Exception.h>
#include <torch/library.h>

#include <functional>
#include <memory>
#include <string>
#include <utility>

#include <narrowcast/wire_format.h>
#include "ops/collectives/all_reduce/operator/announced_call.h"
#include "ops/comm/groups/arguments.h"
#include "ops/comm/groups/group.h"
#include "ops/operators/dispatch.h"
#include "ops/operators/wire_format_meta.h"
#include "ops/operators/without_derivative.h"

namespace narrowcast {
namespace {

using collectives::AllReduceCallOptions;
using Group = c10::intrusive_ptr<c10d::ProcessGroup>;

enum class Written { kX, kNewTensor };

// A call whose arguments may still be wrong.
struct Call {
  const at::Tensor& x;
  std::function<AllReduceCallOptions()> options;
  const Group& group;
  Written written;
};

void check_alone(const Call& call) {
  check_defined(call.x, "x");
  const AllReduceCallOptions options = call.options();
  meta::check_quantized_all_reduce(call.x, to_string(options.format), to_string(options.levels));
  collectives::check_device("x", call.x, call.group);
  TORCH_CHECK_VALUE(options.levels != Levels::kTwo || call.x.is_cpu(),
                    "levels: two is impossible, because x is on a GPU, where operators have one level");
  if (call.written == Written::kX) {
    collectives::check_writable("x", call.x);
    autograd::check_output("x", call.x, autograd::needs_gradient(call.x, call.x));
  }
}

// Returns the call's options. If the arguments of a rank are wrong, throws on all ranks.
AllReduceCallOptions check_together(const Call& call) {
  collectives::check_together(collectives::kQuantizedAllReduce, call.group, [&] { check_alone(call); });
  return call.options();
}

// Averages x, contiguous, in place.
void average(const at::Tensor& x, const AllReduceCallOptions& options, const Group& group) {
  return x.is_cpu() ? collectives::average_on_engine(x, options, group)
                    : collectives::average_on_stream(x.view({-1}), options, group);
}

void average_in_place(const at::Tensor& x, const AllReduceCallOptions& options, const Group& group) {
  if (x.is_contiguous()) {
    average(x, options, group);
  } else {
    const at::Tensor mean = x.contiguous();
    average(mean, options, group);
    x.copy_(mean);
  }
}

void average_into(const at::Tensor& mean, const at::Tensor& x, const AllReduceCallOptions& options,
                  const Group& group) {
  mean.copy_(x);
  average(mean, options, group);
}

std::function<AllReduceCallOptions()> parsed(std::string_view format, std::string_view levels) {
  return [=] { return AllReduceCallOptions{parse_wire_format(format), parse_levels(levels)}; };
}

std::function<AllReduceCallOptions()> always(WireFormat format, Levels levels) {
  return [=] { return AllReduceCallOptions{format, levels}; };
}

void quantized_all_reduce_kernel_(const at::Tensor& x, std::string_view format, std::string_view group_name,
                                  std::string_view levels) {
  const Group group = collectives::find_group(group_name);
  average_in_place(x, check_together({x, parsed(format, levels), group, Written::kX}), group);
}

at::Tensor quantized_all_reduce_kernel(const at::Tensor& x, std::string_view format, std::string_view group_name,
                                       std::string_view levels) {
  const Group group = collectives::find_group(group_name);
  const AllReduceCallOptions options = check_together({x, parsed(format, levels), group, Written::kNewTensor});
  const at::Tensor mean = meta::quantized_all_reduce(x, format, levels);
  average_into(mean, x, options, group);
  return mean;
}

}  // namespace

void quantized_all_reduce_(const at::Tensor& x, WireFormat format, const Group& group, Levels levels) {
  const AllReduceCallOptions options = check_together({x, always(format, levels), group, Written::kX});
  autograd::write_without_derivative("quantized_all_reduce_", {x}, {x}, [&] { average_in_place(x, options, group); });
}

at::Tensor quantized_all_reduce(const at::Tensor& x, WireFormat format, const Group& group, Levels levels) {
  const AllReduceCallOptions options = check_together({x, always(format, levels), group, Written::kNewTensor});
  const at::Tensor mean = meta::quantized_all_reduce(x, to_string(format), to_string(levels));
  autograd::write_without_derivative(collectives::kQuantizedAllReduce, {x}, {mean},
                                     [&] { average_into(mean, x, options, group); });
  return mean;
}

TORCH_LIBRARY_IMPL(narrowcast, CompositeExplicitAutograd, m) {
  m.impl("quantized_all_reduce_", &quantized_all_reduce_kernel_);
  m.impl("quantized_all_reduce", &quantized_all_reduce_kernel);
}

}  // namespace narrowcast

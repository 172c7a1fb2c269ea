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
#include "ops/operators/meta.h"
#include "ops/operators/without_derivative.h"

namespace narrowcast {
namespace {

using collectives::GroupWorkspace;
using collectives::Refusal;
using Group = c10::intrusive_ptr<c10d::ProcessGroup>;

enum class Written { kX, kNewTensor };

// A call whose arguments may still be wrong.
struct Call {
  const at::Tensor& x;
  std::function<WireFormat()> format;
  const Group& group;
  Written written;
};

void check_device(const Call& call) {
  const at::Device device = call.x.device();
  TORCH_CHECK_VALUE(device.is_cpu() || device.is_cuda(), "x must be on the CPU or a GPU, but is on ", device);
  TORCH_CHECK_VALUE(!device.is_cpu() || collectives::moves_cpu_tensors(call.group),
                    "x is on the CPU, but process_group (", call.group->getBackendName(),
                    ") has no backend for CPU tensors");
}

void check_alone(const Call& call) {
  check_defined(call.x, "x");
  meta::check_quantized_all_reduce(call.x, to_string(call.format()));
  check_device(call);
  if (call.written == Written::kX) {
    collectives::check_writable("x", call.x);
    autograd::check_output("x", call.x, autograd::needs_gradient(call.x, call.x));
  }
}

// Announces to the other ranks that this one cannot take part, and throws the error that all ranks throw.
[[noreturn]] void refuse(const Group& group, const Refusal& refusal) {
  collectives::refuse_together(refusal, [&] {
    collectives::announce_call({.call = collectives::kQuantizedAllReduce, .refusal = refusal}, group,
                               collectives::any_device(group), {});
  });
}

// Returns the call's format. If the arguments of a rank are wrong, throws on all ranks.
WireFormat check_together(const Call& call) {
  TORCH_CHECK_VALUE(call.group, "group must be a process group, but is null");
  const auto refusal = collectives::refusal_of([&] { check_alone(call); });
  if (refusal.has_value()) {
    refuse(call.group, *refusal);
  }
  return call.format();
}

void average_on_engine(const at::Tensor& x, WireFormat format, const Group& group) {
  announce_call(collectives::announcement_of(x, format), group, x.device(), [&](GroupWorkspace& workspace) {
    const auto& mean = workspace.mean(x.numel(), format);
    mean->set_call({x.view({-1}), {}, {}});
    return mean;
  });
}

// Averages x, contiguous, in place.
void average(const at::Tensor& x, WireFormat format, const Group& group) {
  return x.is_cpu() ? average_on_engine(x, format, group) : collectives::average_on_stream(x.view({-1}), format, group);
}

void average_in_place(const at::Tensor& x, WireFormat format, const Group& group) {
  if (x.is_contiguous()) {
    average(x, format, group);
  } else {
    const at::Tensor mean = x.contiguous();
    average(mean, format, group);
    x.copy_(mean);
  }
}

void average_into(const at::Tensor& mean, const at::Tensor& x, WireFormat format, const Group& group) {
  mean.copy_(x);
  average(mean, format, group);
}

std::function<WireFormat()> parsed(std::string_view format) {
  return [format] { return parse_wire_format(format); };
}

std::function<WireFormat()> always(WireFormat format) {
  return [format] { return format; };
}

void quantized_all_reduce_kernel_(const at::Tensor& x, std::string_view format, std::string_view group_name) {
  const Group group = collectives::find_group(group_name);
  average_in_place(x, check_together({x, parsed(format), group, Written::kX}), group);
}

at::Tensor quantized_all_reduce_kernel(const at::Tensor& x, std::string_view format, std::string_view group_name) {
  const Group group = collectives::find_group(group_name);
  const WireFormat checked = check_together({x, parsed(format), group, Written::kNewTensor});
  const at::Tensor mean = meta::quantized_all_reduce(x, format);
  average_into(mean, x, checked, group);
  return mean;
}

}  // namespace

void quantized_all_reduce_(const at::Tensor& x, WireFormat format, const Group& group) {
  check_together({x, always(format), group, Written::kX});
  autograd::write_without_derivative("quantized_all_reduce_", {x}, {x}, [&] { average_in_place(x, format, group); });
}

at::Tensor quantized_all_reduce(const at::Tensor& x, WireFormat format, const Group& group) {
  check_together({x, always(format), group, Written::kNewTensor});
  const at::Tensor mean = meta::quantized_all_reduce(x, to_string(format));
  autograd::write_without_derivative(collectives::kQuantizedAllReduce, {x}, {mean},
                                     [&] { average_into(mean, x, format, group); });
  return mean;
}

TORCH_LIBRARY_IMPL(narrowcast, CompositeExplicitAutograd, m) {
  m.impl("quantized_all_reduce_", &quantized_all_reduce_kernel_);
  m.impl("quantized_all_reduce", &quantized_all_reduce_kernel);
}

}  // namespace narrowcast

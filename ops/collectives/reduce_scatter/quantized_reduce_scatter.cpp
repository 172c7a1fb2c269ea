#include <narrowcast/quantized_reduce_scatter.h>

#include <ATen/ops/empty.h>
#include <c10/core/DeviceType.h>
#include <c10/util/Exception.h>
#include <torch/library.h>

#include <functional>
#include <memory>
#include <mutex>
#include <string>
#include <utility>

#include <narrowcast/wire_format.h>
#include "ops/collectives/all_reduce/operator/announced_call.h"
#include "ops/collectives/reduce_scatter/reduce_scatter_job.h"
#include "ops/collectives/reduce_scatter/stream_reduce_scatter.h"
#include "ops/comm/engine/engine.h"
#include "ops/comm/groups/arguments.h"
#include "ops/comm/groups/group.h"
#include "ops/common/enumerator_names.h"
#include "ops/operators/dispatch.h"
#include "ops/operators/wire_format_meta.h"
#include "ops/operators/without_derivative.h"

namespace narrowcast {
namespace {

using collectives::Announcement;
using collectives::GroupWorkspace;
using collectives::kQuantizedReduceScatter;
using collectives::ReduceScatter;
using Group = c10::intrusive_ptr<c10d::ProcessGroup>;

constexpr EnumeratorNames<Reduction, 2> kReductions{
    "op", "Reduction", {{{Reduction::kMean, "mean"}, {Reduction::kSum, "sum"}}}};

// The arguments, which may still be wrong.
struct Call {
  const at::Tensor& shard;
  const at::Tensor& input;
  std::function<WireFormat()> format;
  std::function<Reduction()> reduction;
  const Group& group;
};

void check_alone(const Call& call) {
  check_defined(call.shard, "shard");
  check_defined(call.input, "input");
  meta::check_quantized_reduce_scatter(call.shard, call.input, to_string(call.format()), to_string(call.reduction()));
  collectives::check_device("input", call.input, call.group);
  const int64_t ranks = call.group->getSize();
  TORCH_CHECK_VALUE(call.input.numel() == ranks * call.shard.numel(), "input must have ", ranks, " x ",
                    call.shard.numel(), " elements, one shard for each rank, but has ", call.input.numel());
  collectives::check_writable("shard", call.shard);
  autograd::check_output("shard", call.shard, autograd::needs_gradient(call.input, call.shard));
}

void check_together(const Call& call) {
  collectives::check_together(kQuantizedReduceScatter, call.group, [&] { check_alone(call); });
}

Announcement announcement_of(const ReduceScatter& call) {
  return {.call = kQuantizedReduceScatter,
          .entries = {{"numel of input", std::to_string(call.input.numel())},
                      {"format", std::string(to_string(call.format))},
                      {"op", std::string(to_string(call.reduction))},
                      {"device of input", c10::DeviceTypeName(call.input.device().type(), /*lower_case=*/true)}}};
}

// The call with contiguous tensors, [W n] and [n]. A shard that is not contiguous becomes another tensor.
ReduceScatter contiguous(const ReduceScatter& call) {
  ReduceScatter flat = call;
  flat.input = call.input.contiguous().view({-1});
  flat.shard =
      call.shard.is_contiguous() ? call.shard.view({-1}) : at::empty({call.shard.numel()}, call.shard.options());
  return flat;
}

// Below, `call` has tensors of any shape and strides, and the result is the shard of contiguous(call).

// The first call of a kind compares the ranks; later ones do not wait.
at::Tensor run_on_stream(const ReduceScatter& call, const Group& group) {
  const Announcement announcement = announcement_of(call);
  const ReduceScatter flat = contiguous(call);
  GroupWorkspace::of(group)->run_on_stream(
      announcement, [&] { collectives::announce_call(announcement, group, call.input.device()); },
      [&] { collectives::enqueue_reduce_scatter(flat, group); });
  return flat.shard;
}

// If this rank has too little memory, all ranks throw.
at::Tensor run_on_engine(const ReduceScatter& call, const Group& group) {
  const auto engine = engine::Engine::for_group(group);
  const auto workspace = GroupWorkspace::of(group);
  const std::lock_guard<std::mutex> lock(workspace->in_use);
  Announcement announcement = announcement_of(call);
  at::Tensor shard;
  std::shared_ptr<collectives::ReduceScatterJob> job;
  announcement.refusal = collectives::refusal_of([&] {
    ReduceScatter flat = contiguous(call);
    shard = flat.shard;
    job = std::make_shared<collectives::ReduceScatterJob>(std::move(flat), group->getRank(), group->getSize(),
                                                          *workspace->messages());
  });
  workspace->run(*engine, announcement, std::move(job));
  return shard;
}

void reduce_scatter(const ReduceScatter& call, const Group& group) {
  const at::Tensor& shard = call.shard;
  if (group->getSize() == 1) {
    const at::Tensor sum = call.input.reshape(shard.sizes());
    shard.copy_(sum.is_alias_of(shard) ? sum.clone() : sum);
    return;
  }
  const at::Tensor written = call.input.is_cpu() ? run_on_engine(call, group) : run_on_stream(call, group);
  if (!shard.is_contiguous()) {
    shard.copy_(written.view(shard.sizes()));
  }
}

void quantized_reduce_scatter_kernel_(const at::Tensor& shard, const at::Tensor& input, std::string_view format,
                                      std::string_view op, std::string_view group_name) {
  const Group group = collectives::find_group(group_name);
  check_together({shard, input, [&] { return parse_wire_format(format); }, [&] { return parse_reduction(op); }, group});
  reduce_scatter({shard, input, parse_wire_format(format), parse_reduction(op)}, group);
}

}  // namespace

std::string_view to_string(Reduction reduction) { return kReductions.name_of(reduction); }

std::ostream& operator<<(std::ostream& stream, Reduction reduction) { return stream << to_string(reduction); }

Reduction parse_reduction(std::string_view name) { return kReductions.parse(name); }

void quantized_reduce_scatter_(const at::Tensor& shard, const at::Tensor& input, WireFormat format, Reduction reduction,
                               const Group& group) {
  check_together({shard, input, [=] { return format; }, [=] { return reduction; }, group});
  autograd::write_without_derivative("narrowcast::quantized_reduce_scatter_", {input}, {shard}, [&] {
    reduce_scatter({shard, input, format, reduction}, group);
  });
}

TORCH_LIBRARY_IMPL(narrowcast, CompositeExplicitAutograd, m) {
  m.impl("quantized_reduce_scatter_", &quantized_reduce_scatter_kernel_);
}

}  // namespace narrowcast

#include "ops/collectives/quantized_all_reduce.h"

#include <ATen/ops/empty.h>
#include <ATen/ops/tensor.h>
#include <c10/util/Exception.h>
#include <torch/library.h>

#include <memory>
#include <string>
#include <utility>

#include "ops/autograd/write_without_derivative.h"
#include "ops/collectives/group_name.h"
#include "ops/collectives/mean/quantized_mean_job.h"
#include "ops/collectives/stream/stream_mean.h"
#include "ops/dispatch.h"
#include "ops/engine/engine.h"
#include "ops/error_message.h"
#include "ops/libtorch_versions.h"
#include "ops/meta/quantized_all_reduce.h"
#include "ops/wire_format.h"

namespace narrowcast {
namespace {

using collectives::QuantizedMeanJob;
using Group = c10::intrusive_ptr<c10d::ProcessGroup>;

constexpr const char* kName = "quantized_all_reduce";

// What every rank says of its call: number of elements, format. [W, 2] int64.
at::Tensor gather_calls(const at::Tensor& x, WireFormat format, const Group& group) {
  at::Tensor own = at::tensor({x.numel(), static_cast<int64_t>(format)}, at::kLong).to(x.device());
  at::Tensor all = at::empty({group->getSize() * own.numel()}, own.options());
  try {
    libtorch::all_gather_single(group, all, own)->wait();
  } catch (const std::exception& error) {
    TORCH_CHECK_WITH(DistBackendError, false, "rank ", group->getRank(), ": ", kName,
                     " failed: ", error_message(error));
  }
  return all.view({group->getSize(), own.numel()}).cpu();
}

// All ranks compare the same numbers, and throw the same error.
void check_same_call(const at::Tensor& x, WireFormat format, const Group& group) {
  const at::Tensor calls = gather_calls(x, format, group);
  const auto* const first = calls.const_data_ptr<int64_t>();
  for (int64_t rank = 1; rank < calls.size(0); ++rank) {
    const int64_t* const other = first + rank * calls.size(1);
    TORCH_CHECK_VALUE(other[0] == first[0], kName, ": x has ", other[0], " elements on rank ", rank, " but ", first[0],
                      " on rank 0");
    TORCH_CHECK_VALUE(other[1] == first[1], kName, ": format is ", to_string(static_cast<WireFormat>(other[1])),
                      " on rank ", rank, " but ", to_string(static_cast<WireFormat>(first[1])), " on rank 0");
  }
}

void average_on_engine(const at::Tensor& x, const collectives::QuantizedMeanOptions& options, const Group& group) {
  const auto engine = engine::Engine::for_group(group);  // Before anything is sent.
  check_same_call(x, options.format, group);
  const auto job = std::make_shared<QuantizedMeanJob>(options, collectives::JobMemory{});
  job->set_call({x.view({-1}), {}, {}});
  engine->submit(job)->waitAndThrow();
}

// x is the mean for what is enqueued on the current stream afterwards.
void average_on_stream(const at::Tensor& x, const collectives::QuantizedMeanOptions& options, const Group& group) {
  check_same_call(x, options.format, group);
  collectives::StreamMean(group, options, x.device()).enqueue({x.view({-1}), {}, {}});
}

// Averages x, contiguous, in place.
void average(const at::Tensor& x, WireFormat format, const Group& group) {
  const collectives::QuantizedMeanOptions options{
      .name = kName, .rank = group->getRank(), .world_size = group->getSize(), .numel = x.numel(), .format = format};
  return x.is_cpu() ? average_on_engine(x, options, group) : average_on_stream(x, options, group);
}

void check_device(const at::Tensor& x) {
  TORCH_CHECK_VALUE(x.is_cpu() || x.is_cuda(), "x must be on the CPU or a GPU, but is on ", x.device());
}

void check_arguments(const at::Tensor& x, WireFormat format, const Group& group) {
  check_defined(x, "x");
  TORCH_CHECK_VALUE(group, "group must be a process group, but is null");
  meta::check_quantized_all_reduce(x, to_string(format));
  check_device(x);
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

void quantized_all_reduce_kernel_(const at::Tensor& x, std::string_view format, std::string_view group_name) {
  meta::check_quantized_all_reduce(x, format);
  check_device(x);
  average_in_place(x, parse_wire_format(format), collectives::find_group(group_name));
}

at::Tensor quantized_all_reduce_kernel(const at::Tensor& x, std::string_view format, std::string_view group_name) {
  const at::Tensor mean = meta::quantized_all_reduce(x, format);
  check_device(x);
  const Group group = collectives::find_group(group_name);
  mean.copy_(x);
  average(mean, parse_wire_format(format), group);
  return mean;
}

}  // namespace

void quantized_all_reduce_(const at::Tensor& x, WireFormat format, const Group& group) {
  check_arguments(x, format, group);
  autograd::write_without_derivative("quantized_all_reduce_", {x}, {x}, [&] { average_in_place(x, format, group); });
}

at::Tensor quantized_all_reduce(const at::Tensor& x, WireFormat format, const Group& group) {
  check_arguments(x, format, group);
  const at::Tensor mean = meta::quantized_all_reduce(x, to_string(format));
  autograd::write_without_derivative(kName, {x}, {mean}, [&] {
    mean.copy_(x);
    average(mean, format, group);
  });
  return mean;
}

TORCH_LIBRARY_IMPL(narrowcast, CompositeExplicitAutograd, m) {
  m.impl("quantized_all_reduce_", &quantized_all_reduce_kernel_);
  m.impl("quantized_all_reduce", &quantized_all_reduce_kernel);
}

}  // namespace narrowcast

#include "tests/hooks/all/hook_cases.h"

#include <ATen/ATen.h>

#include <limits>
#include <utility>

#include <narrowcast/hook_options.h>
#include <narrowcast/wire_format.h>
#include "hooks/row/levels.h"
#include "ops/collectives/all_reduce/algorithms/route.h"
#include "ops/collectives/all_reduce/array/element_range.h"
#include "ops/comm/node/node_layout.h"
#include "tests/ops/collectives/all_reduce/algorithms/reference_all_reduce.h"
#include "tests/support/upstream_quantization.h"

namespace narrowcast::hooks {
namespace {

using node::NodeLayout;

double epsilon(at::ScalarType dtype) {
  switch (dtype) {
    case at::kDouble:
      return std::numeric_limits<double>::epsilon();
    case at::kHalf:
      return 1.0 / 1024;
    case at::kBFloat16:
      return 1.0 / 128;
    default:
      return std::numeric_limits<float>::epsilon();
  }
}

at::Tensor mean_in_double(const Gradients& gradients) {
  at::Tensor sum = at::zeros_like(gradients[0], at::kDouble);
  for (const at::Tensor& gradient : gradients) sum += gradient.to(at::kDouble);
  return sum / static_cast<double>(gradients.size());
}

// Gloo chooses the order in which it adds the W quotients, so only a bound on the error is known. The type has machine
// epsilon e. The cast, the quotient and W - 1 additions each round by at most e / 2 of their value. Each value is at
// most the sum of |quotient|, or twice that with the rounding errors. Below the normal range each rounds by at most the
// least subnormal.
at::Tensor rounding_bound(const Gradients& gradients, at::ScalarType dtype) {
  at::Tensor magnitude = at::zeros_like(gradients[0], at::kDouble);
  for (const at::Tensor& gradient : gradients) magnitude += gradient.to(at::kDouble).abs();
  const auto world_size = static_cast<double>(gradients.size());
  const double smallest = dtype == at::kHalf ? 0x1p-24 : 1e-38;
  return magnitude / world_size * epsilon(dtype) * (world_size + 1) + smallest * (world_size + 1);
}

int64_t ring(int64_t payload, int64_t world_size) {
  return (2 * (world_size - 1) * payload + world_size - 1) / world_size;
}

at::ScalarType narrower(at::ScalarType a, at::ScalarType b) { return epsilon(a) > epsilon(b) ? a : b; }

// Also for the power_sgd hooks, whose first steps do not compress.
HookCase all_reduce_case(std::string name = "allreduce") {
  return {
      .name = std::move(name),
      .expected = [](const Gradients& gradients, int64_t) { return mean_in_double(gradients); },
      .tolerance = [](const Gradients& gradients) { return rounding_bound(gradients, gradients[0].scalar_type()); },
      .payload_bytes = [](const at::Tensor& gradient, int64_t,
                          int64_t world_size) { return ring(gradient.numel() * gradient.element_size(), world_size); }};
}

HookCase compress_case(std::string name, at::ScalarType dtype) {
  return {.name = std::move(name),
          .expected = [](const Gradients& gradients, int64_t) { return mean_in_double(gradients); },
          .tolerance =
              [dtype](const Gradients& gradients) {
                // One more rounding, to the bucket's type, which may be the narrower one.
                return rounding_bound(gradients, dtype) +
                       rounding_bound(gradients, narrower(dtype, gradients[0].scalar_type()));
              },
          .payload_bytes = [](const at::Tensor& gradient, int64_t,
                              int64_t world_size) { return ring(gradient.numel() * 2, world_size); }};
}

HookCase noop_case() {
  return {.name = "noop",
          .expected = [](const Gradients& gradients, int64_t rank) { return gradients[rank]; },
          .tolerance = nullptr,
          .payload_bytes = [](const at::Tensor&, int64_t, int64_t) { return 0; },
          .averages = false};
}

HookCase per_tensor_case() {
  return {.name = "quantize_per_tensor",
          .expected = [](const Gradients& gradients, int64_t) { return upstream::per_tensor_mean(gradients); },
          .tolerance = nullptr,
          .payload_bytes =
              [](const at::Tensor& gradient, int64_t, int64_t world_size) {
                return gradient.numel() == 0 ? 0 : (world_size - 1) * (gradient.numel() + 8);
              }};
}

HookCase per_channel_case(std::optional<int64_t> channel_size) {
  const int64_t size = channel_size.value_or(kDefaultChannelSize);
  return {.name = "quantize_per_channel",
          .channel_size = channel_size,
          .expected = [=](const Gradients& gradients, int64_t) { return upstream::per_channel_mean(gradients, size); },
          .tolerance = nullptr,
          .payload_bytes =
              [=](const at::Tensor& gradient, int64_t, int64_t world_size) {
                return (world_size - 1) * (gradient.numel() + 8 * ((gradient.numel() + size - 1) / size));
              }};
}

struct SentArray {
  WireFormat format;
  collectives::LinkCost link;
  int64_t numel;
};

// One shot: the whole message to every peer. Two shots: each peer's shard to that peer, and the mean of the own shard
// to all peers. Shards are not cut where that would change the number of bytes.
int64_t bytes_by_route(const SentArray& array, int64_t rank, int64_t world_size) {
  const auto& [format, link, numel] = array;
  if (collectives::choose_route(numel, world_size, format, link) != collectives::Route::kTwoShot) {
    return (world_size - 1) * encoded_size(numel, format);
  }
  const int64_t own = encoded_size(collectives::shard_of(rank, world_size, numel).numel, format);
  return encoded_size(numel, format) - own + (world_size - 1) * own;
}

// Bytes between nodes, for the segment that the rank owns.
int64_t quantized_bytes(SentArray array, int64_t rank, const NodeLayout& layout) {
  const int64_t segment = layout.local_rank_of(rank);
  if (segment >= layout.segments()) return 0;
  array.numel = collectives::cut(array.numel, layout.segments())[segment].numel;
  return bytes_by_route(array, layout.node_of(rank), layout.nodes());
}

// A measured link could change the routes; here it is given.
constexpr double kGbit = 10;
constexpr double kMicroseconds = 50;

// Without a node size all ranks are on one node, because they share a machine.
HookCase quantized_case(const std::string& name, WireFormat format, WireOptions wire) {
  const std::optional<int64_t> node_size = wire.node_size;
  wire.link_gbit = wire.link_gbit.value_or(kGbit);
  wire.link_us = kMicroseconds;
  const auto layout_of = [=](int64_t world_size) {
    return NodeLayout::of_size(world_size, node_size.value_or(world_size));
  };
  const auto link_of = [=](const NodeLayout& layout) { return with_given_link({}, wire, layout); };
  return {.name = name,
          .wire = wire,
          .expected =
              [=](const Gradients& gradients, int64_t) {
                const NodeLayout layout = layout_of(static_cast<int64_t>(gradients.size()));
                return collectives::mean_over_nodes({format}, gradients, layout, link_of(layout));
              },
          .tolerance = nullptr,
          .payload_bytes =
              [=](const at::Tensor& gradient, int64_t rank, int64_t world_size) {
                const NodeLayout layout = layout_of(world_size);
                return quantized_bytes({format, link_of(layout), gradient.numel()}, rank, layout);
              },
          .in_one_node = !node_size};
}

HookCase quantized_case(const std::string& name, WireFormat format, std::optional<int64_t> node_size = 1) {
  return quantized_case(name, format, WireOptions{.node_size = node_size});
}

// On this slow link the choice is known without a measurement.
HookCase auto_case() {
  return quantized_case("auto", WireFormat::kInt8B128, WireOptions{.node_size = 1, .link_gbit = 1e-4});
}

// All ranks are on one node and so form one group.
HookCase post_local_sgd_case() {
  HookCase hook_case = all_reduce_case();
  hook_case.name = "post_local_sgd";
  return hook_case;
}

}  // namespace

std::vector<HookCase> hook_cases() {
  return {all_reduce_case(),
          compress_case("fp16_compress", at::kHalf),
          compress_case("bf16_compress", at::kBFloat16),
          per_tensor_case(),
          per_channel_case({}),
          per_channel_case(128),
          per_channel_case(1000),
          noop_case(),
          quantized_case("quantized_allreduce", WireFormat::kInt8B128),
          quantized_case("int8", WireFormat::kInt8B128),
          quantized_case("int6", WireFormat::kInt6B32),
          quantized_case("int4", WireFormat::kInt4B32),
          quantized_case("fp8", WireFormat::kFp8E4M3B32),
          quantized_case("var6", WireFormat::kVar6),
          quantized_case("var5", WireFormat::kVar5),
          quantized_case("var4", WireFormat::kVar4),
          quantized_case("var3", WireFormat::kVar3),
          quantized_case("fp32", WireFormat::kFp32),
          quantized_case("int8", WireFormat::kInt8B128, std::nullopt),
          quantized_case("int8", WireFormat::kInt8B128, 2),
          quantized_case("int4", WireFormat::kInt4B32, 3),
          quantized_case("var5", WireFormat::kVar5, 2),
          quantized_case("var3", WireFormat::kVar3, 3),
          quantized_case("fp32", WireFormat::kFp32, 2),
          auto_case(),
          post_local_sgd_case(),
          all_reduce_case("power_sgd"),
          all_reduce_case("power_sgd_rank2"),
          all_reduce_case("batched_power_sgd"),
          all_reduce_case("batched_power_sgd_rank2")};
}

std::vector<HookCase> gpu_hook_cases() {
  std::vector<HookCase> cases = hook_cases();
  std::erase_if(cases, [](const HookCase& value) { return value.name == "auto"; });
  return cases;
}

}  // namespace narrowcast::hooks

// A reference of the quantised all-reduce, from encode and decode only.
#pragma once

#include <ATen/ATen.h>

#include <cstdint>
#include <vector>

#include <narrowcast/wire_format.h>
#include "ops/codec/wire_format.h"
#include "ops/collectives/all_reduce/algorithms/exchange.h"
#include "ops/collectives/all_reduce/algorithms/route.h"
#include "ops/collectives/all_reduce/array/element_range.h"
#include "ops/collectives/all_reduce/codec/wire_codec.h"
#include "ops/comm/node/node_layout.h"

namespace narrowcast::collectives {

inline constexpr int64_t kWorlds[] = {1, 2, 3, 4, 5, 8};
// Costs that force a route if there are at least three ranks.
inline constexpr LinkCost kOneShotPays{1, 0};
inline constexpr LinkCost kTwoShotPays{0, 1};

// The formats that may use two shots.
inline std::vector<WireFormat> two_shot_formats() {
  std::vector<WireFormat> formats(kWireFormats.begin(), kWireFormats.end());
  std::erase_if(formats, codec::wire::is_sparse);
  return formats;
}

struct Reference {
  WireFormat format = WireFormat::kInt8B128;
  codec::wire::Rounding rounding = {};
};

// The part of `rank`, 1-D, as the other ranks decode it.
inline at::Tensor passed_on(const Reference& how, const at::Tensor& part, int64_t begin, int64_t rank, int64_t hop) {
  const codec::wire::Rounding rounding = rounding_of(how.rounding, rank, hop);
  EncodeOptions options;
  if (rounding.stochastic) {
    options = {static_cast<int64_t>(rounding.seed), static_cast<int64_t>(rounding.step),
               static_cast<int64_t>(rounding.position) + begin};
  }
  return decode(encode(part, how.format, options), how.format, part.numel());
}

// Divides by a tensor, because on GPUs PyTorch multiplies with the reciprocal of a number.
inline at::Tensor mean_in_rank_order(const std::vector<at::Tensor>& parts) {
  at::Tensor sum = parts[0].to(at::kFloat).clone();
  for (size_t rank = 1; rank < parts.size(); ++rank) sum.add_(parts[rank].to(at::kFloat));
  return sum.div_(at::full({}, static_cast<int64_t>(parts.size()), sum.options()));
}

// The ranges that are separate messages.
inline std::vector<ElementRange> messages_of(const Reference& how, const std::vector<at::Tensor>& arrays, Route route) {
  const auto world_size = static_cast<int64_t>(arrays.size());
  std::vector<ElementRange> messages =
      result_ranges(route, {.rank = 0, .world_size = world_size, .numel = arrays[0].numel(), .format = how.format});
  std::erase_if(messages, [](const ElementRange& message) { return message.numel == 0; });
  return messages;
}

// For arrays in the order in which they are sent, like all functions with this suffix.
inline at::Tensor one_shot_mean_as_it_lies(const Reference& how, const std::vector<at::Tensor>& arrays) {
  at::Tensor result = at::empty_like(arrays[0]);
  for (const ElementRange& message : messages_of(how, arrays, Route::kOneShot)) {
    std::vector<at::Tensor> parts;
    for (size_t rank = 0; rank < arrays.size(); ++rank) {
      const at::Tensor part = arrays[rank].narrow(0, message.begin, message.numel);
      parts.push_back(passed_on(how, part, message.begin, static_cast<int64_t>(rank), 0));
    }
    result.narrow(0, message.begin, message.numel).copy_(mean_in_rank_order(parts));
  }
  return result;
}

// The rank whose shard contains the element.
inline int64_t owner_of(int64_t element, int64_t world_size, int64_t numel) {
  int64_t owner = 0;
  for (int64_t rank = 0; rank < world_size; ++rank) {
    const ElementRange shard = shard_of(rank, world_size, numel);
    owner = shard.begin <= element && element < shard.begin + shard.numel ? rank : owner;
  }
  return owner;
}

inline at::Tensor two_shot_mean_as_it_lies(const Reference& how, const std::vector<at::Tensor>& arrays) {
  const auto world_size = static_cast<int64_t>(arrays.size());
  at::Tensor result = at::empty_like(arrays[0]);
  for (const ElementRange& message : messages_of(how, arrays, Route::kTwoShot)) {
    const int64_t owner = owner_of(message.begin, world_size, arrays[0].numel());
    std::vector<at::Tensor> parts;
    for (int64_t rank = 0; rank < world_size; ++rank) {
      const at::Tensor part = arrays[rank].narrow(0, message.begin, message.numel);
      parts.push_back(rank == owner ? part : passed_on(how, part, message.begin, rank, 0));
    }
    const at::Tensor mean = passed_on(how, mean_in_rank_order(parts), message.begin, owner, 1);
    result.narrow(0, message.begin, message.numel).copy_(mean);
  }
  return result;
}

inline at::Tensor mean_by_route_as_it_lies(const Reference& how, const std::vector<at::Tensor>& arrays,
                                           const LinkCost& link) {
  const auto ranks = static_cast<int64_t>(arrays.size());
  switch (choose_route(arrays[0].numel(), ranks, how.format, link)) {
    case Route::kNowhere:
      return arrays[0];
    case Route::kOneShot:
      return one_shot_mean_as_it_lies(how, arrays);
    case Route::kTwoShot:
      return two_shot_mean_as_it_lies(how, arrays);
  }
  return {};
}

// The mean of a node's ranks in float32; if nodes differ in size, times N g / W.
inline at::Tensor mean_of_node(const node::NodeLayout& layout, int64_t node, const std::vector<at::Tensor>& arrays) {
  std::vector<at::Tensor> local;
  for (const int64_t rank : layout.ranks_of(node)) local.push_back(arrays[rank].to(at::kFloat));
  const double weight = static_cast<double>(layout.nodes()) * static_cast<double>(local.size()) /
                        static_cast<double>(layout.world_size());
  return mean_in_rank_order(local).mul(weight);
}

// One level if every rank is a node.
inline at::Tensor mean_over_nodes_as_it_lies(const Reference& how, const std::vector<at::Tensor>& arrays,
                                             const node::NodeLayout& layout, const LinkCost& link) {
  if (!layout.has_levels()) return mean_by_route_as_it_lies(how, arrays, link);
  std::vector<at::Tensor> means;
  for (const ElementRange& segment : cut(arrays[0].numel(), layout.segments())) {
    std::vector<at::Tensor> parts;
    for (int64_t node = 0; node < layout.nodes(); ++node) {
      parts.push_back(mean_of_node(layout, node, arrays).narrow(0, segment.begin, segment.numel));
    }
    means.push_back(segment.numel == 0
                        ? parts[0]
                        : mean_by_route_as_it_lies({how.format, how.rounding.at(segment.begin)}, parts, link));
  }
  return at::cat(means).to(arrays[0].scalar_type());
}

// Calls mean() with the arrays in the order in which they are sent, and restores the order of the result's elements.
template <class Mean>
at::Tensor mean_in_order(WireFormat format, const std::vector<at::Tensor>& arrays, const Mean& mean) {
  const int64_t numel = arrays[0].numel();
  const ElementOrder order = ElementOrder::of(format, numel);
  std::vector<at::Tensor> ordered;
  for (const at::Tensor& array : arrays) ordered.push_back(order.take(array, {0, numel}));
  const at::Tensor result = mean(ordered);
  const at::Tensor in_place = at::empty_like(result);
  order.put(result, {0, numel}, in_place);
  return in_place;
}

inline at::Tensor one_shot_mean(const Reference& how, const std::vector<at::Tensor>& arrays) {
  return mean_in_order(how.format, arrays, [&](const auto& ordered) { return one_shot_mean_as_it_lies(how, ordered); });
}

inline at::Tensor two_shot_mean(const Reference& how, const std::vector<at::Tensor>& arrays) {
  return mean_in_order(how.format, arrays, [&](const auto& ordered) { return two_shot_mean_as_it_lies(how, ordered); });
}

inline at::Tensor mean_by_route(const Reference& how, const std::vector<at::Tensor>& arrays, const LinkCost& link) {
  return mean_in_order(how.format, arrays,
                       [&](const auto& ordered) { return mean_by_route_as_it_lies(how, ordered, link); });
}

inline at::Tensor mean_over_nodes(const Reference& how, const std::vector<at::Tensor>& arrays,
                                  const node::NodeLayout& layout, const LinkCost& link = {}) {
  return mean_in_order(how.format, arrays,
                       [&](const auto& ordered) { return mean_over_nodes_as_it_lies(how, ordered, layout, link); });
}

}  // namespace narrowcast::collectives

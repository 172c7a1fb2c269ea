#include "hooks/table/auto_choice.h"

#include <ATen/ATen.h>

#include <algorithm>
#include <cmath>
#include <functional>
#include <iomanip>
#include <sstream>
#include <utility>

#include <narrowcast/hooks.h>
#include <narrowcast/wire_format.h>
#include "hooks/basic/basic_hooks.h"
#include "hooks/row/hook_options.h"
#include "hooks/row/levels.h"
#include "hooks/table/hook_table.h"
#include "ops/codec/wire_format.h"
#include "ops/collectives/all_reduce/algorithms/route.h"
#include "ops/common/device_laps.h"

namespace narrowcast::hooks {
namespace {

using node::NodeLayout;

constexpr double kAlike = 1.02;                   // Times within this factor of the fastest are taken as equal.
constexpr int64_t kLeastNumel = int64_t{1} << 8;  // The printed choice covers sizes from 1 KiB
constexpr int64_t kMostNumel = int64_t{1} << 24;  // to 64 MiB.
constexpr int64_t kLocalNumel = int64_t{1} << 20;
constexpr int64_t kLocalNumelOnGpus = int64_t{1} << 24;  // So many that the start of a kernel counts little.
constexpr int kLocalTurns = 9;
constexpr int64_t kBitsOfFloat32 = 32;

bool is_wire(const std::string& name) { return hook_row(name).format.has_value(); }

// The shortest of several runs, in seconds per element of `gradients`, on their device.
double seconds_per_element(const at::Tensor& gradients, const std::function<void()>& body) {
  double least = INFINITY;
  DeviceLaps laps(gradients.device());
  for (int turn = 0; turn < kLocalTurns; ++turn) {
    laps.mark();
    body();
    laps.mark();
    least = std::min(least, laps.take().front());
  }
  return least / static_cast<double>(gradients.numel());
}

// A rank encodes its message once and decodes about two messages, for any number of hops.
double codec_seconds(const at::Tensor& gradients, WireFormat format) {
  const at::Tensor bytes = encode(gradients, format);
  return seconds_per_element(gradients, [&] { encode(gradients, format); }) +
         2 * seconds_per_element(gradients, [&] { decode(bytes, format, gradients.numel()); });
}

std::string size_text(int64_t numel) {
  const int64_t kib = numel * static_cast<int64_t>(sizeof(float)) / 1024;
  return kib < 1024 ? std::to_string(kib) + " KiB" : std::to_string(kib / 1024) + " MiB";
}

std::string number_text(double value) {
  std::ostringstream text;
  if (value < 0.01) {
    text << std::setprecision(2) << value;
    return text.str();
  }
  text << std::fixed << std::setprecision(value < 1 ? 2 : value < 100 ? 1 : 0) << value;
  return text.str();
}

// The chosen candidate from each of these sizes on.
std::vector<std::pair<int64_t, size_t>> choices_by_size(const std::vector<AutoCandidate>& candidates) {
  std::vector<std::pair<int64_t, size_t>> choices;
  for (int64_t numel = kLeastNumel; numel <= kMostNumel; numel *= 2) {
    const size_t choice = choose_candidate(candidates, numel);
    if (choices.empty() || choices.back().second != choice) {
      choices.emplace_back(numel, choice);
    }
  }
  return choices;
}

}  // namespace

std::vector<AutoCandidate> auto_candidates(const WireOptions& wire, const NodeLayout& layout) {
  const int64_t fewest_bits = auto_bits_of(wire);
  std::vector<AutoCandidate> candidates;
  for (const HookRow& row : hook_rows()) {
    if (!row.sent_with_auto) {
      continue;
    }
    const int64_t bits = codec::wire::code_bits(*row.sent_with_auto);
    const bool is_exact = bits == kBitsOfFloat32;
    const bool may_pay = is_exact     ? !row.format || layout.has_levels()
                         : row.format ? layout.nodes() > 1 && bits >= fewest_bits
                                      : layout.nodes() > 1;
    if (may_pay) {
      candidates.push_back({.name = row.name, .bits = bits});
    }
  }
  std::stable_sort(candidates.begin(), candidates.end(),
                   [](const AutoCandidate& a, const AutoCandidate& b) { return a.bits > b.bits; });
  return candidates;
}

HookOptions candidate_options(const std::string& name, const HookOptions& options) {
  HookOptions own = options;
  own.wire = supported_wire_options(hook_row(name), options.wire);
  return own;
}

size_t choose_candidate(const std::vector<AutoCandidate>& candidates, int64_t numel) {
  double least = INFINITY;
  for (const AutoCandidate& candidate : candidates) {
    least = std::min(least, candidate.cost.of(numel));
  }
  size_t best = candidates.size();
  for (size_t i = 0; i < candidates.size(); ++i) {
    if (candidates[i].cost.of(numel) > kAlike * least) {
      continue;
    }
    const auto order = [&](size_t index) {
      return std::make_pair(-candidates[index].bits, candidates[index].cost.of(numel));
    };
    if (best == candidates.size() || order(i) < order(best)) {
      best = i;
    }
  }
  return best;
}

// A ring of all ranks crosses each node's NIC once and takes 2 (W - 1) hops. In two levels all owners of a node send at
// the same time; the link's seconds per byte include that.
ExchangeCost cost_on_link(const std::string& name, const HookOptions& options, const NodeLayout& layout,
                          const collectives::LinkCost& link) {
  if (layout.nodes() == 1) {
    return {};
  }
  const HookOptions own = candidate_options(name, options);
  const auto bytes =
      static_cast<double>(hook_row(name).payload_bytes({.numel = kLargeNumel}, layout, own)) / kLargeNumel;
  const auto ranks = static_cast<double>(layout.world_size());
  if (!is_wire(name)) {
    const double seconds_per_byte = link.seconds_per_byte / static_cast<double>(layout.segments());
    return {2 * (ranks - 1) * link.seconds_per_hop, bytes * seconds_per_byte};
  }
  const WireFormat format = wire_format_of(name, own.wire).value();
  const auto route = collectives::choose_route(kLargeNumel / layout.segments(), layout.nodes(), format, link);
  return {static_cast<double>(collectives::hops_of(route)) * link.seconds_per_hop, bytes * link.seconds_per_byte};
}

ExchangeCost not_faster_than_link(const ExchangeCost& measured, const ExchangeCost& on_link) {
  return {measured.seconds, std::max(measured.seconds_per_element, on_link.seconds_per_element)};
}

ExchangeCost local_cost(const std::string& name, const HookOptions& options, const NodeLayout& layout,
                        at::Device device) {
  const at::Tensor gradients = at::ones({device.is_cpu() ? kLocalNumel : kLocalNumelOnGpus}, device).mul_(1e-3);
  const at::Tensor other = at::zeros_like(gradients);
  other.copy_(gradients);
  const double copy = seconds_per_element(gradients, [&] { other.copy_(gradients); });
  if (!is_wire(name)) {
    const at::Tensor sent = at::zeros_like(gradients, dtype_of(hook_row(name).sent_with_auto.value()));
    // A copy to it, the sum, and a copy back.
    return {0, 3 * seconds_per_element(gradients, [&] { sent.copy_(gradients); })};
  }
  const auto format = wire_format_of(name, candidate_options(name, options).wire).value();
  const double codec = layout.nodes() == 1 ? 0 : codec_seconds(gradients, format);
  const double in_node = layout.has_levels() ? 3 * copy : 0;  // A copy into the node's memory, the sum, and a copy out.
  return {0, codec / static_cast<double>(layout.segments()) + in_node};
}

std::vector<AutoCandidate> on_slower_link(std::vector<AutoCandidate> candidates, double factor) {
  for (AutoCandidate& candidate : candidates) {
    candidate.cost.seconds += (factor - 1) * candidate.sent.seconds;
    candidate.cost.seconds_per_element += (factor - 1) * candidate.sent.seconds_per_element;
    candidate.sent.seconds *= factor;
    candidate.sent.seconds_per_element *= factor;
  }
  return candidates;
}

std::string choice_text(const std::vector<AutoCandidate>& candidates) {
  const auto choices = choices_by_size(candidates);
  std::string text;
  for (size_t i = choices.size(); i-- > 0;) {
    const auto& [numel, choice] = choices[i];
    text += (text.empty() ? "" : ", ") + candidates[choice].name;
    if (choices.size() > 1) {
      text += i > 0 ? " from " + size_text(numel) : " below";
    }
  }
  std::string costs;
  for (const AutoCandidate& candidate : candidates) {
    costs +=
        (costs.empty() ? "" : ", ") + candidate.name + " " + number_text(1e3 * candidate.cost.of(kLargeNumel)) + " ms";
  }
  return text + " (" + size_text(kLargeNumel) + ": " + costs + ")";
}

std::string link_text(const collectives::Link& link, const NodeLayout& layout) {
  const auto text = [](const collectives::LinkCost& cost, int64_t sharers) {
    return number_text(cost.gbit(sharers)) + " Gbit/s and " + number_text(1e6 * cost.seconds_per_hop) + " us";
  };
  std::string between;
  if (link.between_nodes) {
    between = text(*link.between_nodes, layout.segments()) + " between nodes";
  }
  return link.within_node ? between + (between.empty() ? "" : ", ") + text(*link.within_node, 1) + " within a node"
                          : between;
}

}  // namespace narrowcast::hooks

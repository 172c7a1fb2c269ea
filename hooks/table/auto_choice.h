// The decision of the hook auto: the cost of each candidate for a bucket, and the choice between them.
#pragma once

#include <c10/core/Device.h>

#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include <narrowcast/hook_options.h>
#include "hooks/table/exchange_cost.h"
#include "ops/comm/link/link.h"
#include "ops/comm/node/node_layout.h"

namespace narrowcast::hooks {

// Bucket size at which candidates are compared if one size must do: DdpOptions' default limit, 25 MiB of float32.
inline constexpr int64_t kLargeNumel = int64_t{25} << 18;

// A hook that may be chosen. Candidates are in the order of their rounding errors.
struct AutoCandidate {
  std::string name;
  int64_t bits = 32;       // Bits per element that it sends: fewer bits round more.
  ExchangeCost cost = {};  // Cost of an all-reduce in total.
  ExchangeCost sent = {};  // The part of it on the link between nodes.
};

// The candidates between nodes of that layout, without their costs: rows with sent_with_auto. Among them are the 32-bit
// rows and, with several nodes, the 16-bit rows and the formats with at least the bits that `wire` allows. With one
// node nothing leaves it, and nothing is rounded.
std::vector<AutoCandidate> auto_candidates(const WireOptions& wire, const node::NodeLayout& layout);

// The options of one candidate, given the options of the hook auto.
HookOptions candidate_options(const std::string& name, const HookOptions& options);

// The index of the candidate for a bucket of `numel` elements. Candidates within 2% of the fastest count as equally
// fast, because measurements cannot separate them. Among these, the one that rounds least is taken, then the fastest
// one.
size_t choose_candidate(const std::vector<AutoCandidate>& candidates, int64_t numel);

// The cost of a candidate's all-reduce on a link: payload and hops.
ExchangeCost cost_on_link(const std::string& name, const HookOptions& options, const node::NodeLayout& layout,
                          const collectives::LinkCost& link);

// The measured cost, raised for large buckets to at least the cost on the link. Large buckets are extrapolated from
// all-reduces of a few milliseconds, to which a busy machine may add as much again.
ExchangeCost not_faster_than_link(const ExchangeCost& measured, const ExchangeCost& on_link);

// Measures the cost of rounding, adding and copying on this rank's CPU or GPU. Takes some milliseconds.
ExchangeCost local_cost(const std::string& name, const HookOptions& options, const node::NodeLayout& layout,
                        at::Device device = at::kCPU);

// The candidates with their costs if the link took `factor` times as long.
std::vector<AutoCandidate> on_slower_link(std::vector<AutoCandidate> candidates, double factor);

// "int8 from 64 KiB, allreduce below (25 MiB: int8 8.1 ms, bf16_compress 14.9 ms, allreduce 28.3 ms)".
std::string choice_text(const std::vector<AutoCandidate>& candidates);

// "0.94 Gbit/s and 83 us between nodes", for a node's NIC; empty without a link.
std::string link_text(const collectives::Link& link, const node::NodeLayout& layout);

}  // namespace narrowcast::hooks

// What the hook auto decides by: what each of its candidates takes for a bucket, and which of them is taken.
#pragma once

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

// The elements of a bucket by which candidates are judged where one size must do: as large as DdpOptions lets buckets
// be by itself, 25 MiB of float32.
inline constexpr int64_t kLargeNumel = int64_t{25} << 18;

// A hook that may be taken, in the order of how much it rounds.
struct AutoCandidate {
  std::string name;
  int64_t bits = 32;       // It sends an element in so many: fewer round more.
  ExchangeCost cost = {};  // What an exchange takes in all,
  ExchangeCost sent = {};  // and the part of it that the link between nodes takes; at most as much.
};

// The candidates between nodes of that layout, without their costs: of the rows with sent_with_auto those of 32 bits
// and, where something is sent, those of 16 and the formats of as few bits as `wire` allows. On one node what the ranks
// send does not leave it: nothing is rounded.
std::vector<AutoCandidate> auto_candidates(const WireOptions& wire, const node::NodeLayout& layout);

// The options of one of them, given those of the hook auto.
HookOptions candidate_options(const std::string& name, const HookOptions& options);

// The index of the one to take for a bucket of so many elements: of those that take at most a fiftieth more than the
// fastest, which no measurement tells apart, the one that rounds least, and of these the fastest.
size_t choose_candidate(const std::vector<AutoCandidate>& candidates, int64_t numel);

// What a link takes of a candidate's exchange: its payload, and its hops.
ExchangeCost cost_on_link(const std::string& name, const HookOptions& options, const node::NodeLayout& layout,
                          const collectives::LinkCost& link);

// What was measured, where large buckets take at least what they take on the link. They are known from smaller ones:
// of a few milliseconds, of which a busy machine adds as many more to one size or the other.
ExchangeCost not_faster_than_link(const ExchangeCost& measured, const ExchangeCost& on_link);

// What rounding, adding up and copying take on this rank: measured, some milliseconds. On the CPU.
ExchangeCost local_cost(const std::string& name, const HookOptions& options, const node::NodeLayout& layout);

// The candidates with what they would take if the link took `factor` times as long.
std::vector<AutoCandidate> on_slower_link(std::vector<AutoCandidate> candidates, double factor);

// "int8 from 64 KiB, allreduce below (25 MiB: int8 8.1 ms, bf16_compress 14.9 ms, allreduce 28.3 ms)".
std::string choice_text(const std::vector<AutoCandidate>& candidates);

// "0.94 Gbit/s and 83 us between nodes", of a node's card; empty for no link.
std::string link_text(const collectives::Link& link, const node::NodeLayout& layout);

}  // namespace narrowcast::hooks

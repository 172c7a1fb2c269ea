// The properties of a hook: a row of the table (hooks/table/hook_table.h).
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <set>
#include <string>
#include <string_view>
#include <vector>

#include <narrowcast/comm_hook.h>
#include <narrowcast/hook_options.h>
#include "hooks/row/error_bound.h"
#include "ops/comm/node/node_layout.h"

namespace narrowcast::hooks {

// Names of hooks that have a role elsewhere in the project.
inline constexpr const char* kNoHook = "none";                        // No hook: the Reducer averages.
inline constexpr const char* kAllReduceHook = "allreduce";            // A hook that averages as the Reducer does.
inline constexpr const char* kBf16Hook = "bf16_compress";             // The usual way to send less.
inline constexpr const char* kAnyFormatHook = "quantized_allreduce";  // Averages in the format of its options.
inline constexpr const char* kPostLocalSgdHook = "post_local_sgd";    // Averages in groups.
inline constexpr const char* kNoExchangeHook = "noop";                // Sends nothing.

// The properties of gradients that determine the bytes of an all-reduce.
struct GradientSizes {
  int64_t numel = 0;
  int64_t one_dimensional = 0;           // Elements of parameters with at most one dimension.
  int64_t element_size = sizeof(float);  // In bytes.
  // Each parameter's sizes. If empty, no hook compresses by shape.
  std::vector<std::vector<int64_t>> shapes = {};
};

// The tolerances of PyTorch's own test of its hooks (torch.testing.assert_close) for the reference task.
struct ReferenceTolerance {
  double relative = 1e-5;
  double absolute = 0;
};

// The matrices of which a step's means are low-rank approximations.
enum class Approximated {
  kMatrices,  // of parameters, where that reduces the bytes
  kBuckets    // Each is one matrix, regardless of shapes. Several buckets send more than one bucket of all gradients.
};

// A hook. The functions take the options with which the hook is made. For rows in the table these may lack values that
// filled_in adds; the functions of a row outside the table need complete options. Only `make` needs the process group.
// Hooks that average in one level use only the number of ranks of the layout.
struct HookRow {
  std::string name;

  // Empty for kNoHook. `row` is this row; it outlives the hook and gives its name.
  std::function<std::unique_ptr<CommHook>(const HookRow& row, const HookOptions& options)> make = nullptr;

  // Bytes that the rank with the most bytes sends for such gradients. If ranks may send in one hop or in two, two are
  // assumed. All gradients count as one bucket, because the Reducer decides how many there are. Per-bucket overhead
  // does not count, except padding of blocks.
  std::function<int64_t(const GradientSizes& gradients, const node::NodeLayout& layout, const HookOptions& options)>
      payload_bytes;

  // Bound of the difference between a bucket's mean with and without the hook: this rank's terms. They also hold for
  // more levels than the layout has.
  std::function<ErrorTerms(const SentBucket& bucket, const node::NodeLayout& layout, const HookOptions& options)>
      error_terms;

  // Empty for hooks that PyTorch does not have.
  std::optional<ReferenceTolerance> reference_tolerance = std::nullopt;

  // CommHook::keeps_replicas_equal.
  bool keeps_replicas_equal = true;

  // Whether it passes each bucket to another hook that it chooses.
  bool chooses = false;

  // Whether it averages in groups of ranks; other code then averages the parameters.
  bool averages_in_groups = false;

  // Empty for hooks whose mean of each step is exact up to rounding. For the others, `error_terms` hold if the rank of
  // the approximation is the rank of the matrix. They compress only after PowerSgdOptions::start steps.
  std::optional<Approximated> approximated = std::nullopt;

  // The kinds of options that have an effect. A hook that takes kLevels averages in levels, and making it is a
  // collective.
  std::set<OptionKind> options = {};

  // The default wire format of the hook; empty if it does not use one.
  std::optional<WireFormat> format = std::nullopt;

  // The format in which the hook sends if auto chooses it; empty if auto may not. More bits have smaller rounding
  // errors.
  std::optional<WireFormat> sent_with_auto = std::nullopt;

  // The default rank of a PowerSGD hook's approximation.
  int64_t power_sgd_rank = 1;

  // For a hook that averages in levels: the most float32 elements that a rank stages in its node's memory for such
  // gradients, in one bucket or in all buckets in flight. Empty: all elements.
  std::function<int64_t(const GradientSizes& gradients, const HookOptions& options)> staged_numel = nullptr;

  // Whether options of that kind have an effect.
  bool takes(OptionKind kind) const { return options.contains(kind); }

  bool approximates() const { return approximated.has_value(); }
  bool compresses_buckets() const { return approximated == Approximated::kBuckets; }
};

// Fills in the hook's defaults, except auto_bits. Removes a format, channel size and rank that the hook does not have.
HookOptions filled_in(const HookRow& row, HookOptions options);

// The wire options that have an effect on the hook of that row; the others are reset to their defaults.
WireOptions supported_wire_options(const HookRow& row, WireOptions wire);

// A hook of the table. Its row, which outlives it, has its name and whether it keeps replicas equal.
class TableHook : public CommHook {
 public:
  explicit TableHook(const HookRow& row) : row_(row) {}

  std::string_view name() const override { return row_.name; }
  bool keeps_replicas_equal() const override { return row_.keeps_replicas_equal; }

 protected:
  const HookRow& row() const { return row_; }

 private:
  const HookRow& row_;
};

}  // namespace narrowcast::hooks

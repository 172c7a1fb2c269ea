// What the project knows of a hook: a row of the table (hooks/table/hook_table.h).
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

// The names of hooks that have a role elsewhere in the project.
inline constexpr const char* kNoHook = "none";                        // There is no hook: the Reducer averages.
inline constexpr const char* kAllReduceHook = "allreduce";            // A hook averages as the Reducer does.
inline constexpr const char* kBf16Hook = "bf16_compress";             // It is the usual way to send less.
inline constexpr const char* kAnyFormatHook = "quantized_allreduce";  // It averages in the format of its options.
inline constexpr const char* kPostLocalSgdHook = "post_local_sgd";    // It averages in groups.
inline constexpr const char* kNoExchangeHook = "noop";                // It sends nothing.

// The gradients of one exchange, as far as the bytes that it sends depend on them.
struct GradientSizes {
  int64_t numel = 0;
  int64_t one_dimensional = 0;           // As many of those are in parameters with one dimension or none.
  int64_t element_size = sizeof(float);  // In bytes.
  // Each parameter's sizes, where they count; without them no hook compresses any part by its shape.
  std::vector<std::vector<int64_t>> shapes = {};
};

// The tolerances of PyTorch's own test of its hooks (torch.testing.assert_close) for the reference task.
struct ReferenceTolerance {
  double relative = 1e-5;
  double absolute = 0;
};

// What the means of a step are low-rank approximations of.
enum class Approximated {
  kMatrices,  // of parameters, where that pays
  kBuckets  // Each is one matrix: nothing is chosen by shapes, and of several buckets more is sent than of all in one.
};

// A hook. The functions take the options that the hook is made with. Of rows in the table these may leave open what
// filled_in fills in; the functions of a row that is not in it yet are given what it fills in. All but `make` do
// without their process group. Of the ranks' layout, hooks that average in one level use the number of ranks.
struct HookRow {
  std::string name;

  // Empty for kNoHook. `row` is this one, which outlives the hook: it says what the hook is called.
  std::function<std::unique_ptr<CommHook>(const HookRow& row, const HookOptions& options)> make = nullptr;

  // What the rank that sends most sends for such gradients, in bytes. Where ranks may send in one hop or in two, two
  // count. All gradients count as one bucket: the Reducer decides how many there are. What comes once per bucket does
  // not count, but for what fills up blocks.
  std::function<int64_t(const GradientSizes& gradients, const node::NodeLayout& layout, const HookOptions& options)>
      payload_bytes;

  // How far the mean of a bucket may be from the one without a hook: this rank's terms. They hold for more levels than
  // the layout has, too.
  std::function<ErrorTerms(const SentBucket& bucket, const node::NodeLayout& layout, const HookOptions& options)>
      error_terms;

  // Nothing for hooks that PyTorch does not have.
  std::optional<ReferenceTolerance> reference_tolerance = std::nullopt;

  // Whether all ranks end every step with the same gradients, as CommHook::keeps_replicas_equal.
  bool keeps_replicas_equal = true;

  // Whether it gives each bucket to one of other hooks.
  bool chooses = false;

  // Whether it averages in groups of the ranks, whose parameters somebody else averages.
  bool averages_in_groups = false;

  // Nothing for hooks whose mean of each step is exact but for rounding. `error_terms` of others hold where the rank of
  // the approximation is that of the matrix; only after some steps do they compress (PowerSgdOptions::start).
  std::optional<Approximated> approximated = std::nullopt;

  // The kinds of options that have an effect. A hook that takes kLevels exchanges in levels, and making it is a
  // collective.
  std::set<OptionKind> options = {};

  // The wire format in which the hook sends, unless the options name another; nothing for hooks that have none.
  std::optional<WireFormat> format = std::nullopt;

  // The format in which the hook sends where the hook auto takes it; nothing where auto may not. More bits round less.
  std::optional<WireFormat> sent_with_auto = std::nullopt;

  // The rank of a PowerSGD hook's approximation, unless the options say another.
  int64_t power_sgd_rank = 1;

  // The most elements in float32 that a rank of a hook which exchanges in levels has in its node's memory for such
  // gradients, in one bucket or in those that are in flight together. Empty: all of them.
  std::function<int64_t(const GradientSizes& gradients, const HookOptions& options)> staged_numel = nullptr;

  // Whether options of that kind have an effect.
  bool takes(OptionKind kind) const { return options.contains(kind); }

  bool approximates() const { return approximated.has_value(); }
  bool compresses_buckets() const { return approximated == Approximated::kBuckets; }
};

// The options with what they leave to the hook of that row filled in, but for auto_bits, and without the format, size
// of channels and rank that it does not have.
HookOptions filled_in(const HookRow& row, HookOptions options);

// What of the wire options has an effect on the hook of that row; the rest is as it is by itself.
WireOptions supported_wire_options(const HookRow& row, WireOptions wire);

// A hook of the table: its row, which outlives it, says what it is called and whether it keeps replicas equal.
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

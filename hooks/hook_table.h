// What the project knows of each hook: one row of a table, which all others ask, so that none of them needs to know the
// hooks by their names. Adding a hook is its own .h and .cpp, and its row in hook_table.cpp.
#pragma once

#include <cstdint>
#include <functional>
#include <list>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include <narrowcast/comm_hook.h>
#include <narrowcast/export.h>
#include <narrowcast/hook_options.h>
#include "hooks/error_bound.h"
#include "ops/node/node_layout.h"

namespace narrowcast::hooks {

// The gradients of one exchange, as far as the bytes that it sends depend on them.
struct GradientSizes {
  int64_t numel = 0;
  int64_t one_dimensional = 0;           // Of those, in parameters with one dimension or none.
  int64_t element_size = sizeof(float);  // In bytes.
  // Of each parameter, where they count; without them all gradients count as parts that no hook compresses by shape.
  std::vector<std::vector<int64_t>> shapes = {};
};

// The tolerances of PyTorch's own test of its hooks (torch.testing.assert_close) for the reference task.
struct ReferenceTolerance {
  double relative = 1e-5;
  double absolute = 0;
};

// A hook. The functions take the options that the hook is made with, and fill in what these leave open; all but `make`
// do without their process group. Of the ranks' layout, hooks that average in one level use the number of ranks.
struct HookRow {
  std::string name;

  // Empty for "none": there is no hook to make, the Reducer averages by itself.
  std::function<std::unique_ptr<CommHook>(const HookOptions& options)> make = nullptr;

  // What the rank that sends most sends for such gradients, in bytes. Where ranks may send in one hop or in two, that
  // of two. As if all gradients were in one bucket: the Reducer decides how many there are. What comes once per bucket
  // does not count, but for what fills up blocks.
  std::function<int64_t(const GradientSizes& gradients, const node::NodeLayout& layout, const HookOptions& options)>
      payload_bytes;

  // How far the mean of a bucket may be from the one without a hook: this rank's terms. They hold for more levels than
  // the layout has, too.
  std::function<ErrorTerms(const SentBucket& bucket, const node::NodeLayout& layout, const HookOptions& options)>
      error_terms;

  // Nothing for hooks that PyTorch does not have.
  std::optional<ReferenceTolerance> reference_tolerance = std::nullopt;

  // Whether all ranks end a step with the same gradients, as CommHook::keeps_replicas_equal.
  bool keeps_replicas_equal = true;

  // Whether HookOptions::channel_size has an effect.
  bool takes_channel_size = false;

  // HookOptions::wire has an effect on hooks with a format (but see `chooses`), which is this unless the options name
  // another. Whether they may is the second one.
  std::optional<WireFormat> format = std::nullopt;
  bool takes_format = false;

  // Of a hook that the hook auto may take: the format in which it sends. More bits round less.
  std::optional<WireFormat> sent_with_auto = std::nullopt;

  // Whether the hook takes another one for each bucket. HookOptions::wire has an effect then, too.
  bool chooses = false;

  // Whether HookOptions::local has an effect.
  bool takes_local = false;

  // Whether HookOptions::power_sgd and, of HookOptions::wire, levels and node_size have an effect; the rank of the
  // approximation, unless the options say another; and whether that is of whole buckets, for which nothing is chosen by
  // the shapes of parameters, and of which several send more than one of all.
  bool takes_power_sgd = false;
  int64_t power_sgd_rank = 1;
  bool compresses_buckets = false;

  // Of hooks that exchange in levels, the most elements in float32 that a rank has in its node's memory for such
  // gradients, in one bucket or in those that are in flight together. Empty: all of them.
  std::function<int64_t(const GradientSizes& gradients, const HookOptions& options)> staged_numel = nullptr;

  bool takes_wire() const { return format.has_value() || chooses; }

  // Whether options of that kind have an effect.
  bool takes(OptionKind kind) const;

  // Whether the hook exchanges in levels: WireOptions::levels and node_size have an effect, and making it is a
  // collective.
  bool takes_levels() const { return takes_wire() || takes_power_sgd; }
};

// The row of that name. c10::ValueError for an unknown name; it lists the known ones.
const HookRow& hook_row(const std::string& name);

// All rows, in the order of the documentation.
const std::list<HookRow>& hook_rows();

// The options with which a hook does from its first step on what others let it do only after some steps: compress, or
// average in groups.
NARROWCAST_EXPORT HookOptions without_start(const std::string& hook, HookOptions options);

// The names of the rows that have a property, separated by ", ": hook_names_with(&HookRow::takes_format).
using HookProperty = bool HookRow::*;
std::string hook_names_with(HookProperty property);

// One more row behind the others, for as long as this lives: how a test adds a hook. Made and destroyed while nobody
// asks the table.
class AddedHookRow {
 public:
  explicit AddedHookRow(HookRow row);
  ~AddedHookRow();
  AddedHookRow(const AddedHookRow&) = delete;
  AddedHookRow& operator=(const AddedHookRow&) = delete;

 private:
  std::list<HookRow>::const_iterator row_;
};

}  // namespace narrowcast::hooks

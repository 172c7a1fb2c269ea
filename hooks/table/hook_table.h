// All hooks by name, one row each. Other code reads the rows, so it does not depend on individual hooks. A new hook
// needs a class, in the files of its family or its own, and a row in hook_table.cpp.
#pragma once

#include <c10/util/intrusive_ptr.h>

#include <functional>
#include <list>
#include <memory>
#include <string>
#include <torch/csrc/distributed/c10d/ProcessGroup.hpp>
#include <utility>

#include <narrowcast/export.h>
#include <narrowcast/hook_options.h>
#include <narrowcast/hooks.h>
#include "hooks/row/hook_row.h"

namespace narrowcast::hooks {

// The row of that name. c10::ValueError for an unknown name; it lists the known ones.
const HookRow& hook_row(const std::string& name);

// All rows, in the order of the documentation.
const std::list<HookRow>& hook_rows();

// The options without a start phase: the hook compresses, or averages in groups, from the first step on.
inline HookOptions with_immediate_start(const std::string& hook, HookOptions options) {
  if (power_sgd_rank_of(hook).has_value()) {
    options.power_sgd.start = 0;
  }
  options.local.start = 0;  // The default, which all other hooks require.
  return options;
}

// create_comm_hook (<narrowcast/hooks.h>) for options that are read first. If reading throws a c10::ValueError or
// c10::TypeError on one rank, all ranks throw it, as for an option that is out of range.
NARROWCAST_EXPORT std::unique_ptr<CommHook> create_comm_hook(const std::string& name,
                                                             const c10::intrusive_ptr<c10d::ProcessGroup>& group,
                                                             const std::function<HookOptions()>& read_options);

// The names of the hooks that take options of that kind, separated by ", ".
std::string hook_names_that_take(OptionKind kind);

// Adds a row after the others, or removes it; tests add hooks this way. Not thread-safe.
std::list<HookRow>::const_iterator add_hook_row(HookRow row);
void remove_hook_row(std::list<HookRow>::const_iterator row);

}  // namespace narrowcast::hooks

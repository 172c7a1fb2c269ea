// A hook that a test adds.
#pragma once

#include <list>
#include <utility>

#include "hooks/table/hook_table.h"

namespace narrowcast::hooks {

// Adds a row to the end of the hook table for the lifetime of this object. Construct and destroy it while no other
// thread uses the table.
class AddedHookRow {
 public:
  explicit AddedHookRow(HookRow row) : row_(add_hook_row(std::move(row))) {}
  ~AddedHookRow() { remove_hook_row(row_); }
  AddedHookRow(const AddedHookRow&) = delete;
  AddedHookRow& operator=(const AddedHookRow&) = delete;

 private:
  std::list<HookRow>::const_iterator row_;
};

}  // namespace narrowcast::hooks

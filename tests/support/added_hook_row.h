// A hook that a test adds.
#pragma once

#include <list>
#include <utility>

#include "hooks/table/hook_table.h"

namespace narrowcast::hooks {

// One more row after the others, for as long as this lives. Made and destroyed while nobody asks the table.
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

// New processes among ranks that have worked together: one that does not fit them ends alone.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include <narrowcast/consensus.h>
#include <narrowcast/process_group.h>

namespace narrowcast::recovery {

enum class Standing {
  kNew,        // this process has not agreed with others yet
  kHasAgreed,  // it was in a group whose ranks did not differ
};

struct NewRanks {
  std::vector<int64_t> ranks;  // in order
  std::string misfit;          // this rank is one of them, and must end: how it differs from the others. Else empty
};

// A collective: compares values of all ranks, e.g. of their `plan`. If all ranks are new, it throws c10::ValueError on
// all of them if they differ. Else it returns `misfit` on a new rank that differs from those that have agreed. All
// others then throw c10::DistBackendError, as if that rank had been lost.
NewRanks check_new_ranks(const ProcessGroupPtr& group, Standing own, const std::string& what,
                         const std::vector<NamedValue>& values);

// Parses the values that another rank sends: [[NAME, VALUE], ...]. Throws CorruptInputError naming `source` for another
// text.
std::vector<NamedValue> parse_named_values(const std::string& text, const std::string& source);

}  // namespace narrowcast::recovery

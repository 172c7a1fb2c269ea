// How ranks agree on small values, apart from the gradients. Each function is a collective: all ranks of the group call
// it from one thread, in the same order relative to their other collectives. It returns when the result is there. It
// throws c10::DistBackendError naming the rank and the step if a peer failed.
#pragma once

#include <string>
#include <vector>

#include <narrowcast/export.h>
#include <narrowcast/process_group.h>

namespace NARROWCAST_EXPORT narrowcast {

// Returns when all ranks have called it. Errors name `step`, the purpose of the barrier.
void barrier(const ProcessGroupPtr& group, const std::string& step);

// The sum over the ranks, element by element. All ranks pass the same number of values and get the same bits. Sums of
// integers are exact up to 2^53.
std::vector<double> all_reduce_sum(const ProcessGroupPtr& group, const std::vector<double>& values);

// The maximum over the ranks, element by element, as above. No value may be NaN.
std::vector<double> all_reduce_max(const ProcessGroupPtr& group, const std::vector<double>& values);

// The text of every rank, by rank. Texts may differ in length, up to 64 MiB. If a rank announces a length above
// that or below 0, all ranks throw a c10::DistBackendError that names the rank.
std::vector<std::string> all_gather_text(const ProcessGroupPtr& group, const std::string& text);

// Something that must be the same on all ranks, e.g. {"--hook", "int8"}.
struct NamedValue {
  std::string name;   // as errors name it
  std::string value;  // as text, for comparison and for errors
};

// Throws c10::ValueError, the same on all ranks, unless all ranks pass equal lists: "batch_size differs between ranks:
// rank 0 has 8, rank 1 has 16". Values are compared by name. The error names the first rank that differs from rank 0,
// and its first value that differs, in the order of rank 0. Values that both ranks have come before values that one of
// them lacks ("rank 1 does not have it"). If only the order differs, the error names the order.
// Sends 8 bytes per rank if the lists are equal, and the lists themselves only if they differ. A rank that sends
// something other than a list, or has a narrowcast that writes lists in another form, is a c10::DistBackendError that
// names it.
void check_equal_on_all_ranks(const ProcessGroupPtr& group, const std::vector<NamedValue>& values);

}  // namespace narrowcast

// How ranks agree on small things outside the gradients' way. Each function is a
// collective: all ranks of the group call it, in the same order relative to their
// other collectives, from one thread. It returns when the result is here and
// throws c10::DistBackendError naming the rank and the step if a peer failed.
#pragma once

#include <string>
#include <vector>

#include <narrowcast/export.h>
#include <narrowcast/process_group.h>

namespace NARROWCAST_EXPORT narrowcast {

// Returns when all ranks have called it. `step` says what for, in errors.
void barrier(const ProcessGroupPtr& group, const std::string& step);

// The sum over the ranks, element by element; every rank passes as many values and gets the same bits. Sums of integers
// are exact up to 2^53.
std::vector<double> all_reduce_sum(const ProcessGroupPtr& group, const std::vector<double>& values);

// The greatest over the ranks, element by element, as above. No value may be NaN.
std::vector<double> all_reduce_max(const ProcessGroupPtr& group, const std::vector<double>& values);

// The text of every rank, by rank. Texts may differ in length, up to 64 MiB: a rank that
// announces another length is a c10::DistBackendError, on all ranks, that names it.
std::vector<std::string> all_gather_text(const ProcessGroupPtr& group, const std::string& text);

// Something that must be the same on all ranks, e.g. {"--hook", "int8"}.
struct NamedValue {
  std::string name;   // as errors call it
  std::string value;  // as text, by which it is compared and shown
};

// Throws c10::ValueError, the same on all ranks, unless all ranks pass equal lists:
// "batch_size differs between ranks: rank 0 has 8, rank 1 has 16". Values are
// compared by name. The error names the first rank that differs from rank 0, and the
// first value that does, in the order of rank 0, those that both have before those that
// one lacks ("rank 1 does not have it"). If only the order differs, the error says so. Sends
// 8 bytes per rank where lists are equal, the lists themselves only where they differ.
// A rank that sends anything but a list, or has a narrowcast that writes lists in
// another form, is a c10::DistBackendError that names it.
void check_equal_on_all_ranks(const ProcessGroupPtr& group, const std::vector<NamedValue>& values);

}  // namespace narrowcast

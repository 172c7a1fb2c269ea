// The last of the reference test's cases: hooks are told which bucket is the last.
#pragma once

#include <cstdint>

#include <narrowcast/consensus.h>

namespace narrowcast::verification {

struct IsLastResult {
  int64_t buckets = 0;  // in the second backward pass; one alone would prove nothing
  bool passed = false;  // there are several, and the flag is set for the final one only, on all ranks
};

// A collective: two backward passes through eleven bias-free Linear layers with a hook that notes the flags. The
// reference test has widths of 2 and 4000 and buckets of 25 MiB, which takes 2 GB of memory on every rank; here width
// and bucket size are scaled so that each wide layer still fills a bucket of its own.
IsLastResult check_is_last(const ProcessGroupPtr& group);

}  // namespace narrowcast::verification

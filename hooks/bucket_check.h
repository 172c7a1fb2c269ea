// What the quantised hooks demand of a bucket.
#pragma once

#include <c10/util/intrusive_ptr.h>

#include <string_view>
#include <torch/csrc/distributed/c10d/comm.hpp>

namespace narrowcast::hooks {

// Contiguous, on the CPU or a GPU, of type float, double, half or bfloat16. Else c10::ValueError or c10::TypeError
// naming `hook` and the bucket.
void check_bucket(std::string_view hook, const c10d::GradBucket& bucket);

// A bucket comes again when the future of its last step is completed, or gone. Else c10::ValueError.
void check_completed(std::string_view hook, const c10d::GradBucket& bucket,
                     const c10::weak_intrusive_ptr<c10::ivalue::Future>& last);

}  // namespace narrowcast::hooks

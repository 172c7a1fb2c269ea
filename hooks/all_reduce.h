// The asynchronous all-reduce behind the hooks that need nothing else.
#pragma once

#include <ATen/core/ivalue.h>
#include <c10/util/intrusive_ptr.h>

#include <functional>
#include <string>
#include <torch/csrc/distributed/c10d/ProcessGroup.hpp>

namespace narrowcast::hooks {

// Issues the all-reduce (sum, in place) of `tensor` at once, on the calling thread: the ranks' collectives stay in
// order. When it is done, `then` runs and gives the future its value; it must not wait for anything. A failed
// collective fails the future with c10::DistBackendError that names this rank and `hook`.
c10::intrusive_ptr<c10::ivalue::Future> all_reduce_then(const c10::intrusive_ptr<c10d::ProcessGroup>& group,
                                                        const at::Tensor& tensor, std::string hook,
                                                        std::function<at::Tensor()> then);

}  // namespace narrowcast::hooks

// What a hook keeps for each bucket from step to step, so that it allocates
// nothing once training runs.
#pragma once

#include <ATen/core/Tensor.h>

#include <map>
#include <torch/csrc/distributed/c10d/comm.hpp>
#include <utility>

namespace narrowcast::hooks {

// One Scratch per bucket index. The Reducer rebuilds its buckets after the first
// step: a bucket of another size, dtype or device gets a new Scratch, and those of
// buckets that no longer exist go.
template <class Scratch>
class PerBucket {
 public:
  // The scratch of `bucket`; make() returns a new one where the old one does not fit.
  template <class Make>
  Scratch& get(const c10d::GradBucket& bucket, const Make& make) {
    const at::Tensor& buffer = bucket.getBuffer();
    if (bucket.isLast()) entries_.erase(entries_.upper_bound(bucket.getIndex()), entries_.end());
    auto found = entries_.find(bucket.getIndex());
    if (found != entries_.end() && !found->second.fits(buffer)) {
      entries_.erase(found);  // Before make allocates.
      found = entries_.end();
    }
    if (found == entries_.end()) {
      found = entries_.emplace(bucket.getIndex(), Entry{buffer.numel(), buffer.options(), make()}).first;
    }
    return found->second.scratch;
  }

 private:
  struct Entry {
    int64_t numel;
    at::TensorOptions options;
    Scratch scratch;

    bool fits(const at::Tensor& buffer) const {
      return numel == buffer.numel() && options.dtype() == buffer.dtype() && options.device() == buffer.device();
    }
  };
  std::map<size_t, Entry> entries_;
};

}  // namespace narrowcast::hooks

// A bucket as hooks see it: what they demand of it, where its parameters lie, what they keep for it from step to step,
// and how that is saved.
#pragma once

#include <ATen/core/Tensor.h>
#include <c10/util/intrusive_ptr.h>

#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <string_view>
#include <torch/csrc/distributed/c10d/comm.hpp>
#include <unordered_map>
#include <vector>

#include <narrowcast/comm_hook.h>
#include "ops/collectives/all_reduce/array/segments.h"

namespace narrowcast::hooks {

// Contiguous, on the CPU or a GPU, of type float, double, half or bfloat16. Else c10::ValueError or c10::TypeError
// naming `hook` and the bucket.
void check_bucket(std::string_view hook, const c10d::GradBucket& bucket);

// A bucket comes again when the future of its last step is completed, or gone. Else c10::ValueError.
void check_completed(std::string_view hook, const c10d::GradBucket& bucket,
                     const c10::weak_intrusive_ptr<c10::ivalue::Future>& last);

// Whether a parameter has one dimension or none, as biases and norms have: those that WireOptions can exempt.
inline bool is_one_dimensional(const at::Tensor& parameter) { return parameter.dim() <= 1; }

// A parameter in a bucket.
struct ParameterSegment {
  const void* parameter = nullptr;  // Its identity, the same in every step and every bucket.
  collectives::Segment segment;
  bool one_dimensional = true;  // As is_one_dimensional says of the parameter.
  bool operator==(const ParameterSegment&) const = default;
};

// In the order of the bucket; empty for a bucket that names no parameters.
std::vector<ParameterSegment> layout_of(const c10d::GradBucket& bucket);

// The segments of one-dimensional parameters, in order; neighbours are one segment.
std::vector<collectives::Segment> one_dimensional_segments(const std::vector<ParameterSegment>& layout);

// Residuals are saved by parameter, under these and its name: the numbers, and an int64 tensor with the index of its
// bucket, its first element there, and what else a hook wants to know of its place.
inline constexpr const char* kResidual = "residual.";
inline constexpr const char* kPlace = "place.";

// The names of parameters, by their identities.
using ParameterNames = std::unordered_map<const void*, std::string>;
ParameterNames names_of(const std::vector<NamedParameter>& parameters);

// What is saved as the place of that parameter, `least` to `most` numbers. CorruptInputError for what is no place.
std::vector<int64_t> place_in(const HookState& state, const std::string& parameter, int64_t least, int64_t most);

// Puts a parameter whose first element is at `begin` where it belongs in the layout of a bucket.
void insert_parameter(std::vector<ParameterSegment>& layout, const NamedParameter& parameter, int64_t begin);

// The first element of the bucket that is in no parameter although one lies behind it; nothing if there is none.
std::optional<int64_t> gap_in(const std::vector<ParameterSegment>& layout);

// What a residual of a rank in a former world is multiplied by, so that it has the same effect on later means.
inline double residual_share(int64_t world_size, int64_t former_world_size) {
  return static_cast<double>(world_size) / static_cast<double>(former_world_size);
}

// Adds to a residual, which may be undefined: then it becomes `more` itself.
inline void add_residual(at::Tensor& residual, const at::Tensor& more) {
  residual = residual.defined() ? residual.add_(more) : more;
}

// Multiplies a residual in place, unless it is undefined.
inline void rescale_residual(const at::Tensor& residual, double factor) {
  if (residual.defined()) residual.mul_(factor);
}

// Finds the steps in which parameters change buckets.
class NewBuckets {
 public:
  // Whether this bucket, or one before it in its step, came otherwise than it did last: another size or device, other
  // parameters. Called for every bucket, in the order of indices.
  bool notice(const c10d::GradBucket& bucket, const std::vector<ParameterSegment>& layout);

 private:
  struct Seen {
    int64_t numel;
    at::Device device;
    std::vector<ParameterSegment> layout;
    bool operator==(const Seen&) const = default;
  };
  std::map<size_t, Seen> seen_;
  size_t last_ = 0;     // Index of the last bucket,
  bool found_ = false;  // and what was told of it.
};

// What a hook keeps for each bucket from step to step, so that it allocates nothing once training runs: one Scratch per
// bucket index. The Reducer rebuilds its buckets after the first step: a bucket of another size, dtype or device gets a
// new Scratch, and those of buckets that no longer exist go.
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

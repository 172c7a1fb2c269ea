// Buckets as hooks use them: requirements, places of parameters, state from step to step, and saved state.
#pragma once

#include <ATen/core/Tensor.h>
#include <ATen/core/ivalue.h>
#include <c10/core/TensorImpl.h>
#include <c10/core/UndefinedTensorImpl.h>
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
#include "ops/collectives/all_reduce/array/element_range.h"

namespace narrowcast::hooks {

// Dense, contiguous, on the CPU or a GPU, on the hook's device if its options give one (HookOptions::device), of type
// float, double, half or bfloat16. Else c10::ValueError or c10::TypeError naming `hook` and the bucket.
void check_bucket(std::string_view hook, const c10d::GradBucket& bucket,
                  std::optional<c10::DeviceType> device = std::nullopt);

// The first of these checks.
void check_dense(std::string_view hook, const c10d::GradBucket& bucket);

// The last exchange of a bucket. A hook waits for it when it gets the bucket again, because the exchange uses buffers
// that the hook keeps for the bucket. It does not throw instead: whether the exchange is still in flight depends on
// timing, so only some ranks would throw.
class LastExchange {
 public:
  using FuturePtr = c10::intrusive_ptr<c10::ivalue::Future>;

  // Blocks until the exchange is completed, with a value or an error. On GPUs the current stream waits, not the host.
  // All ranks give buckets in the same order, so this rank has given everything that other ranks may wait for. A thread
  // that completes futures must not call it.
  void wait() const {
    if (done_) done_->wait();
  }

  // Returns `future`, which is the last exchange from now on.
  FuturePtr set(FuturePtr future);

 private:
  FuturePtr done_;  // Completed after the exchange, without a value: that would keep the bucket's buffer alive.
};

// Whether a parameter has at most one dimension, like biases and norms. WireOptions can exempt these.
inline bool is_one_dimensional(const at::Tensor& parameter) { return parameter.dim() <= 1; }

// Numbers in a parameter's gradient. A bucket of complex parameters is real: it holds two numbers for each element,
// while its offsets and lengths count elements.
inline int64_t numbers_per_element(const at::Tensor& parameter) { return parameter.is_complex() ? 2 : 1; }
inline int64_t numbers_in(const at::Tensor& parameter) { return parameter.numel() * numbers_per_element(parameter); }

// The sizes of a parameter's gradient in a bucket, in which the numbers of an element are adjacent.
std::vector<int64_t> real_sizes(const at::Tensor& parameter);

// A parameter in a bucket.
struct ParameterRange {
  const void* parameter = nullptr;  // Identity of the parameter, the same in every step and bucket.
  collectives::ElementRange range;
  bool one_dimensional = true;  // is_one_dimensional of the parameter.
  bool operator==(const ParameterRange&) const = default;
};
using ParameterRanges = std::vector<ParameterRange>;

// The parameters in the order of the bucket; empty if the bucket names none.
ParameterRanges parameter_ranges(const c10d::GradBucket& bucket);

// References to parameters. As long as one exists, no other tensor gets the parameter's identity, even if the parameter
// is destroyed: a hook may last longer than the model, and does not keep it alive.
using WeakParameter = c10::weak_intrusive_ptr<c10::TensorImpl, c10::UndefinedTensorImpl>;
using WeakParameters = std::vector<WeakParameter>;
inline WeakParameters weak_references(const std::vector<at::Tensor>& parameters) {
  WeakParameters references;
  for (const at::Tensor& parameter : parameters) references.emplace_back(parameter.getIntrusivePtr());
  return references;
}

// The ranges of one-dimensional parameters, in order; adjacent ones are joined.
std::vector<collectives::ElementRange> one_dimensional_ranges(const ParameterRanges& ranges);

// Residuals are saved by parameter, under these prefixes and its name.
// - residual.NAME: the values.
// - place.NAME: int64, the index of its bucket, its first element there, and more numbers if a hook needs them.
inline constexpr const char* kResidual = "residual.";
inline constexpr const char* kPlace = "place.";

// Names of parameters, by identity. `parameters` must outlive it.
class ParameterNames {
 public:
  explicit ParameterNames(const std::vector<NamedParameter>& parameters);

  // c10::ValueError, with the names of the first and the last parameter, if this one is not among them.
  const std::string& at(const void* parameter) const;

 private:
  const std::vector<NamedParameter>& parameters_;
  std::unordered_map<const void*, std::string> names_;
};

// c10::ValueError, with their names, if a state has entries PREFIX + NAME of parameters that are not given.
void check_saved_parameters(const FormerRanks& saved, const std::vector<NamedParameter>& parameters,
                            const std::vector<std::string>& prefixes);

// The saved place of that parameter, `least` to `most` numbers. CorruptInputError if it is not a valid place.
std::vector<int64_t> place_in(const HookState& state, const std::string& parameter, int64_t least, int64_t most);

// Inserts a parameter whose first element is at `begin` into the ranges of a bucket.
void insert_parameter(ParameterRanges& ranges, const NamedParameter& parameter, int64_t begin);

// The first element of the bucket that belongs to no parameter although a parameter follows it. Empty if there is no
// gap.
std::optional<int64_t> gap_in(const ParameterRanges& ranges);

// The factor for a residual of a former world's rank that keeps its effect on later means.
inline double residual_share(int64_t world_size, int64_t former_world_size) {
  return static_cast<double>(world_size) / static_cast<double>(former_world_size);
}

// Adds `more` to a residual; an undefined residual becomes `more` itself.
inline void add_residual(at::Tensor& residual, const at::Tensor& more) {
  residual = residual.defined() ? residual.add_(more) : more;
}

// Multiplies a residual in place, unless it is undefined.
inline void rescale_residual(const at::Tensor& residual, double factor) {
  if (residual.defined()) residual.mul_(factor);
}

// Detects steps in which parameters change buckets.
class NewBuckets {
 public:
  // Whether this bucket, or an earlier one of the step, has changed since its last call: in size, device or parameters.
  // Called for every bucket, in the order of indices.
  bool notice(const c10d::GradBucket& bucket, const ParameterRanges& ranges);

 private:
  struct Seen {
    int64_t numel;
    at::Device device;
    ParameterRanges ranges;
    bool operator==(const Seen&) const = default;
  };
  std::map<size_t, Seen> seen_;
  size_t last_ = 0;     // Index of the last bucket.
  bool found_ = false;  // Result for the last bucket.
};

// Per-bucket scratch from step to step, so that a running training allocates nothing: one Scratch per bucket index. The
// Reducer rebuilds its buckets after the first step. A bucket of another size, dtype, device or memory format then gets
// a new Scratch, and entries of buckets that no longer exist are removed. So a bucket that was checked when its Scratch
// was made need not be checked again.
template <class Scratch>
class PerBucket {
 public:
  // The scratch of `bucket`; make() returns a new one if it does not fit.
  template <class Make>
  Scratch& get(const c10d::GradBucket& bucket, const Make& make) {
    const at::Tensor& buffer = bucket.getBuffer();
    if (bucket.isLast()) entries_.erase(entries_.upper_bound(bucket.getIndex()), entries_.end());
    auto found = entries_.find(bucket.getIndex());
    if (found != entries_.end() && !found->second.fits(buffer)) {
      entries_.erase(found);  // Frees the old scratch before make allocates.
      found = entries_.end();
    }
    if (found == entries_.end()) {
      found =
          entries_.emplace(bucket.getIndex(), Entry{buffer.numel(), buffer.options(), is_contiguous(buffer), make()})
              .first;
    }
    return found->second.scratch;
  }

 private:
  struct Entry {
    int64_t numel;
    at::TensorOptions options;
    bool contiguous;
    Scratch scratch;

    bool fits(const at::Tensor& buffer) const {
      return numel == buffer.numel() && options.dtype() == buffer.dtype() && options.device() == buffer.device() &&
             options.layout() == buffer.layout() && contiguous == is_contiguous(buffer);
    }
  };
  static bool is_contiguous(const at::Tensor& buffer) {
    return buffer.layout() == at::kStrided && buffer.is_contiguous();
  }
  std::map<size_t, Entry> entries_;
};

}  // namespace narrowcast::hooks

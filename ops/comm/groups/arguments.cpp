#include "ops/comm/groups/arguments.h"

#include <ATen/MemoryOverlap.h>
#include <ATen/ops/zeros.h>
#include <c10/util/Exception.h>
#include <c10/util/StringUtil.h>

#include <algorithm>
#include <new>
#include <utility>
#include <vector>

#include "ops/common/error_message.h"
#include "ops/common/text.h"

namespace narrowcast::collectives {
namespace {

// Whether each stride is longer than the total reach of the smaller ones, as in a slice of a tensor.
bool strides_keep_apart(const at::Tensor& tensor) {
  std::vector<std::pair<int64_t, int64_t>> reaches;  // Stride of a dimension, and how far it reaches.
  for (int64_t i = 0; i < tensor.dim(); ++i) {
    if (tensor.size(i) > 1) reaches.emplace_back(tensor.stride(i), (tensor.size(i) - 1) * tensor.stride(i));
  }
  std::sort(reaches.begin(), reaches.end());
  int64_t reached = 0;
  for (const auto& [stride, reach] : reaches) {
    if (stride <= reached) return false;
    reached += reach;
  }
  return true;
}

// For the few tensors whose strides alone do not decide it. Marks the place of each element, and counts the places.
bool shares_places(const at::Tensor& tensor) {
  int64_t places = 1;
  for (int64_t i = 0; i < tensor.dim(); ++i) {
    places += (tensor.size(i) - 1) * tensor.stride(i);
  }
  const at::Tensor marks = at::zeros({places}, at::kByte);
  marks.as_strided(tensor.sizes(), tensor.strides()).fill_(1);
  return marks.sum().item<int64_t>() < tensor.numel();
}

bool overlaps_itself(const at::Tensor& tensor) {
  switch (at::has_internal_overlap(tensor)) {
    case at::MemOverlap::No:
      return false;
    case at::MemOverlap::Yes:
      return true;
    case at::MemOverlap::TooHard:
      return tensor.numel() > 0 && !strides_keep_apart(tensor) && shares_places(tensor);
  }
  return false;
}

[[noreturn]] void throw_with(const Refusal& refusal, const std::string& message) {
  TORCH_CHECK_TYPE(!refusal.wrong_type, message);
  TORCH_CHECK_VALUE(false, message);
}

}  // namespace

void check_writable(const std::string& name, const at::Tensor& tensor) {
  TORCH_CHECK_VALUE(!overlaps_itself(tensor), name, " has elements that overlap in memory: its sizes are ",
                    tensor.sizes(), ", its strides ", tensor.strides());
}

std::optional<Refusal> refusal_of(const std::function<void()>& check) {
  try {
    check();
  } catch (const c10::TypeError& error) {
    return Refusal{true, error.what_without_backtrace()};
  } catch (const c10::Error& error) {
    return Refusal{false, error.what_without_backtrace()};
  } catch (const std::bad_alloc&) {
    return Refusal{false, "there is too little memory"};
  }
  return std::nullopt;
}

void throw_refusal(const Refusal& refusal, const std::string& call, int64_t rank) {
  throw_with(refusal, c10::str(printable(call, kLongestCompared), call.empty() ? "rank " : " on rank ", rank, ": ",
                               printable(refusal.reason)));
}

void refuse_together(const Refusal& refusal, const std::function<void()>& inform) {
  std::string failure;
  try {
    inform();
  } catch (const c10::DistBackendError& error) {
    failure = error_message(error);
  }
  throw_with(refusal, refusal.reason + "; the other ranks could not be informed: " + failure);
}

}  // namespace narrowcast::collectives

#include "trainer/ddp/module/broadcast.h"

#include <ATen/core/grad_mode.h>

#include <algorithm>
#include <torch/csrc/distributed/c10d/comm.hpp>

#include <narrowcast/network_errors.h>

namespace narrowcast {
namespace {

constexpr size_t kChunkBytes = size_t{250} << 20;

// Dtypes that Gloo and NCCL support.
constexpr at::ScalarType kSentByName[] = {at::kFloat, at::kDouble, at::kHalf, at::kBFloat16, at::kByte,
                                          at::kChar,  at::kInt,    at::kLong, at::kBool};

bool is_sent_by_name(const at::Tensor& tensor) {
  return std::ranges::find(kSentByName, tensor.scalar_type()) != std::end(kSentByName);
}

// uint8 [bytes]; shares the tensor's memory if it is contiguous.
at::Tensor bytes_of(const at::Tensor& tensor) {
  return tensor.detach().resolve_conj().resolve_neg().contiguous().flatten().view(at::kByte);
}

void copy_bytes(const at::Tensor& bytes, const at::Tensor& tensor) {
  if (!bytes.is_alias_of(tensor)) {
    tensor.copy_(bytes.view(tensor.scalar_type()).view(tensor.sizes()));
  }
}

}  // namespace

void broadcast_from_rank(int64_t from, const ProcessGroupPtr& group, const std::vector<at::Tensor>& tensors,
                         const std::string& step) {
  if (tensors.empty()) {
    return;
  }
  const at::NoGradGuard no_grad;
  std::vector<at::Tensor> sent;
  for (const at::Tensor& tensor : tensors) {
    sent.push_back(is_sent_by_name(tensor) ? tensor : bytes_of(tensor));
  }
  with_network_errors(group->getRank(), step,
                      [&] { c10d::broadcast_coalesced(group, sent, kChunkBytes, static_cast<int>(from)); });
  for (size_t i = 0; i < tensors.size(); ++i) {
    if (!is_sent_by_name(tensors[i])) copy_bytes(sent[i], tensors[i]);
  }
}

}  // namespace narrowcast

#include "trainer/training/replicas.h"

#include <algorithm>
#include <functional>
#include <string>
#include <string_view>

namespace narrowcast::training {
namespace {

size_t hash_bits(const std::vector<at::Tensor>& tensors) {
  size_t hash = 0;
  for (const at::Tensor& tensor : tensors) {
    const at::Tensor data = tensor.detach().cpu().contiguous();
    const std::string_view bytes(static_cast<const char*>(data.const_data_ptr()), data.nbytes());
    // The multiplier makes the order of the tensors count.
    hash = hash * 0x9E3779B97F4A7C15 + std::hash<std::string_view>()(bytes);
  }
  return hash;
}

}  // namespace

bool equal_on_all_ranks(const ProcessGroupPtr& group, const std::vector<at::Tensor>& tensors) {
  const std::vector<std::string> hashes = all_gather_text(group, std::to_string(hash_bits(tensors)));
  return std::all_of(hashes.begin(), hashes.end(), [&](const std::string& hash) { return hash == hashes[0]; });
}

}  // namespace narrowcast::training

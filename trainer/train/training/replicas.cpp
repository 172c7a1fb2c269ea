#include "trainer/train/training/replicas.h"

#include <algorithm>
#include <string>

#include "trainer/base/files/hash.h"

namespace narrowcast::training {
namespace {

uint64_t hash_bits(const std::vector<at::Tensor>& tensors) {
  uint64_t hash = kHashStart;
  for (const at::Tensor& tensor : tensors) {
    const at::Tensor data = tensor.detach().cpu().contiguous();
    hash = hash_of_content({static_cast<const char*>(data.const_data_ptr()), data.nbytes()}, hash);
  }
  return hash;
}

}  // namespace

bool equal_on_all_ranks(const ProcessGroupPtr& group, const std::vector<at::Tensor>& tensors) {
  const std::vector<std::string> hashes = all_gather_text(group, std::to_string(hash_bits(tensors)));
  return std::all_of(hashes.begin(), hashes.end(), [&](const std::string& hash) { return hash == hashes[0]; });
}

}  // namespace narrowcast::training

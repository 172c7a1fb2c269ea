#include "trainer/train/optimization/saved_buffers.h"

#include <ATen/core/grad_mode.h>
#include <ATen/ops/_foreach_copy.h>

#include <map>
#include <set>
#include <utility>

namespace narrowcast::training {

SavedBuffers::SavedBuffers(const torch::nn::Module& module) {
  std::map<std::pair<at::ScalarType, at::DeviceIndex>, List> lists;
  std::set<const at::TensorImpl*> seen;
  for (const at::Tensor& buffer : module.buffers()) {
    if (buffer.defined() && seen.insert(buffer.unsafeGetTensorImpl()).second) {
      lists[{buffer.scalar_type(), buffer.device().index()}].buffers.push_back(buffer);
    }
  }
  for (auto& [kind, list] : lists) {
    lists_.push_back(std::move(list));
  }
}

void SavedBuffers::save() {
  const at::NoGradGuard no_grad;
  for (List& list : lists_) {
    if (list.copies.empty()) {
      for (const at::Tensor& buffer : list.buffers) list.copies.push_back(buffer.detach().clone());
    } else {
      at::_foreach_copy_(list.copies, list.buffers);
    }
  }
}

void SavedBuffers::restore() const {
  const at::NoGradGuard no_grad;
  for (const List& list : lists_) {
    if (!list.copies.empty()) at::_foreach_copy_(list.buffers, list.copies);
  }
}

}  // namespace narrowcast::training

#include "hooks/gathered_mean.h"

#include <ATen/ops/empty.h>
#include <ATen/ops/zeros.h>

#include "ops/backend_errors.h"
#include "ops/libtorch_versions.h"

namespace narrowcast::hooks {
namespace {

// [W, ...]: the tensor of every rank.
at::Tensor gather(const c10::intrusive_ptr<c10d::ProcessGroup>& group, const std::string& hook, at::Tensor own) {
  std::vector<int64_t> sizes = own.sizes().vec();
  sizes.insert(sizes.begin(), group->getSize());
  at::Tensor all = at::empty(sizes, own.options());
  at::Tensor flat = all.view({-1});
  at::Tensor own_flat = own.view({-1});
  with_backend_errors(group->getRank(), "all-gather of hook " + hook,
                      [&] { libtorch::all_gather_single(group, flat, own_flat)->wait(); });
  return all;
}

}  // namespace

int64_t enqueue_gathered_mean(const c10::intrusive_ptr<c10d::ProcessGroup>& group, const std::string& hook,
                              const TensorCodec& codec, const at::Tensor& bucket) {
  if (bucket.numel() == 0) {
    return 0;
  }
  int64_t bytes = 0;
  std::vector<at::Tensor> gathered;
  for (const at::Tensor& own : codec.encode(bucket)) {
    gathered.push_back(gather(group, hook, own));
    bytes += static_cast<int64_t>(own.nbytes()) * (group->getSize() - 1);
  }
  at::Tensor sum = at::zeros({bucket.numel()}, bucket.options().dtype(at::kFloat));
  for (int64_t rank = 0; rank < group->getSize(); ++rank) {
    std::vector<at::Tensor> tensors;
    for (const at::Tensor& all : gathered) {
      tensors.push_back(all[rank]);
    }
    sum.add_(codec.decode(tensors, bucket.numel()));
  }
  bucket.copy_(sum.div_(group->getSize()));
  return bytes;
}

}  // namespace narrowcast::hooks

#include "ops/collectives/all_gather_rows.h"

#include <ATen/ops/zeros.h>

#include "ops/backend_errors.h"
#include "ops/libtorch_versions.h"

namespace narrowcast::collectives {

at::Tensor all_gather_rows(const c10::intrusive_ptr<c10d::ProcessGroup>& group, const std::string& call,
                           const at::Tensor& row, at::Device device) {
  at::Tensor sent = row.to(device);
  at::Tensor received = at::zeros({group->getSize() * sent.numel()}, sent.options());
  return with_backend_errors(group->getRank(), call, [&] {
    libtorch::all_gather_single(group, received, sent)->wait();
    return received.cpu().view({group->getSize(), sent.numel()});
  });
}

}  // namespace narrowcast::collectives

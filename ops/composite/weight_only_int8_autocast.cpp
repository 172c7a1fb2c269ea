// weight_only_int8_linear under autocast: as torch.nn.functional.linear there, it
// computes in autocast's dtype, whatever the input's, but for float64. Scales and
// bias keep their dtypes: they are applied in float32 all the same.
#include <ATen/autocast_mode.h>
#include <c10/core/impl/LocalDispatchKeySet.h>
#include <torch/library.h>

#include <optional>

#include "ops/dispatch.h"

namespace narrowcast {
namespace {

template <at::DeviceType kDevice>
at::Tensor linear_in_autocast_dtype(const at::Tensor& input, const at::Tensor& weight, const at::Tensor& scales,
                                    const std::optional<at::Tensor>& bias) {
  using Linear = at::Tensor(const at::Tensor&, const at::Tensor&, const at::Tensor&, const std::optional<at::Tensor>&);
  static const auto op = find_operator<Linear>("narrowcast::weight_only_int8_linear");
  const c10::impl::ExcludeDispatchKeyGuard below_autocast(
      at::autocast::get_autocast_dispatch_key_from_device_type(kDevice));
  const at::ScalarType dtype = at::autocast::get_autocast_dtype(kDevice);
  return op.call(at::autocast::cached_cast(dtype, input, kDevice), weight, scales, bias);
}

}  // namespace

TORCH_LIBRARY_IMPL(narrowcast, AutocastCPU, m) {
  m.impl("weight_only_int8_linear", &linear_in_autocast_dtype<at::kCPU>);
}

TORCH_LIBRARY_IMPL(narrowcast, AutocastCUDA, m) {
  m.impl("weight_only_int8_linear", &linear_in_autocast_dtype<at::kCUDA>);
}

}  // namespace narrowcast

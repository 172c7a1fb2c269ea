// The operators on lists, for all devices at once: each tensor goes through the
// dispatcher by itself, so that devices may differ. A list without tensors names
// no device; of the keys that such a call can reach, CompositeExplicitAutograd is
// the one that serves every device as well.
#include <ATen/core/Tensor.h>
#include <torch/library.h>

#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include <narrowcast/quantize_tensor.h>
#include "ops/meta/quantize_tensor.h"

namespace narrowcast {
namespace {

std::string element_name(const char* list, size_t index) {
  return std::string(list) + "[" + std::to_string(index) + "]";
}

std::vector<at::Tensor> quantize_list(at::TensorList xs, std::string_view name) {
  const DQuantType qtype = parse_dquant_type(name);
  for (size_t i = 0; i < xs.size(); ++i) {
    meta::check_quantizable(xs[i], element_name("xs", i));
  }
  std::vector<at::Tensor> qs;
  for (const at::Tensor& x : xs) {
    qs.push_back(quantize_tensor(x, qtype));
  }
  return qs;
}

std::vector<at::Tensor> dequantize_list(at::TensorList qs, std::string_view name, std::optional<double> quant_loss) {
  const DQuantType qtype = parse_dquant_type(name);
  for (size_t i = 0; i < qs.size(); ++i) {
    meta::check_dequantizable(qs[i], element_name("qs", i));
  }
  std::vector<at::Tensor> decoded;
  for (const at::Tensor& q : qs) {
    decoded.push_back(dequantize_tensor(q, qtype, quant_loss));
  }
  return decoded;
}

}  // namespace

TORCH_LIBRARY_IMPL(narrowcast, CompositeExplicitAutograd, m) {
  m.impl("quantize_tensor_list", &quantize_list);
  m.impl("dequantize_tensor_list", &dequantize_list);
}

}  // namespace narrowcast

// FP16 and BFP16, the part that all devices share: the C++ functions, and the operators on lists.
#include <narrowcast/quantize_tensor.h>

#include <c10/util/Exception.h>
#include <torch/library.h>

#include <string>

#include "ops/operators/dispatch.h"
#include "ops/operators/quantize_tensor_meta.h"

namespace narrowcast {
namespace {

using QuantLoss = std::optional<double>;
using Quantize = at::Tensor(const at::Tensor&, std::string_view);
using QuantizeList = std::vector<at::Tensor>(at::TensorList, std::string_view);
using Dequantize = at::Tensor(const at::Tensor&, std::string_view, QuantLoss);
using DequantizeList = std::vector<at::Tensor>(at::TensorList, std::string_view, QuantLoss);

std::string element_name(const char* list, size_t index) {
  return std::string(list) + "[" + std::to_string(index) + "]";
}

// Each tensor of a list goes through the dispatcher separately, so that devices may differ.
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

std::vector<at::Tensor> dequantize_list(at::TensorList qs, std::string_view name, QuantLoss quant_loss) {
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

std::string_view to_string(DQuantType qtype) {
  switch (qtype) {
    case DQuantType::kFp16:
      return "fp16";
    case DQuantType::kBfp16:
      return "bfp16";
  }
  TORCH_CHECK_VALUE(false, "Quantization type ", static_cast<int64_t>(qtype), " is not supported");
}

std::ostream& operator<<(std::ostream& stream, DQuantType qtype) { return stream << to_string(qtype); }

DQuantType parse_dquant_type(std::string_view name) {
  for (const DQuantType qtype : {DQuantType::kFp16, DQuantType::kBfp16}) {
    if (name == to_string(qtype)) {
      return qtype;
    }
  }
  TORCH_CHECK_VALUE(false, "Quantization type ", name, " is not supported");
}

at::Tensor quantize_tensor(const at::Tensor& x, DQuantType qtype) {
  static const auto op = find_operator<Quantize>("narrowcast::quantize_tensor");
  check_defined(x, "x");
  return op.call(x, to_string(qtype));
}

std::vector<at::Tensor> quantize_tensor_list(at::TensorList xs, DQuantType qtype) {
  static const auto op = find_operator<QuantizeList>("narrowcast::quantize_tensor_list");
  return op.call(xs, to_string(qtype));
}

at::Tensor dequantize_tensor(const at::Tensor& q, DQuantType qtype, QuantLoss quant_loss) {
  static const auto op = find_operator<Dequantize>("narrowcast::dequantize_tensor");
  check_defined(q, "q");
  return op.call(q, to_string(qtype), quant_loss);
}

std::vector<at::Tensor> dequantize_tensor_list(at::TensorList qs, DQuantType qtype, QuantLoss quant_loss) {
  static const auto op = find_operator<DequantizeList>("narrowcast::dequantize_tensor_list");
  return op.call(qs, to_string(qtype), quant_loss);
}

// A list without tensors has no device. Such a call can reach few dispatch keys; the only one among them that also
// serves every device is CompositeExplicitAutograd.
TORCH_LIBRARY_IMPL(narrowcast, CompositeExplicitAutograd, m) {
  m.impl("quantize_tensor_list", &quantize_list);
  m.impl("dequantize_tensor_list", &dequantize_list);
}

}  // namespace narrowcast

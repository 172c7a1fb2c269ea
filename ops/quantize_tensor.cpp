#include <narrowcast/quantize_tensor.h>

#include <c10/util/Exception.h>

#include "ops/dispatch.h"

namespace narrowcast {
namespace {

using QuantLoss = std::optional<double>;
using Quantize = at::Tensor(const at::Tensor&, std::string_view);
using QuantizeList = std::vector<at::Tensor>(at::TensorList, std::string_view);
using Dequantize = at::Tensor(const at::Tensor&, std::string_view, QuantLoss);
using DequantizeList = std::vector<at::Tensor>(at::TensorList, std::string_view, QuantLoss);

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

}  // namespace narrowcast

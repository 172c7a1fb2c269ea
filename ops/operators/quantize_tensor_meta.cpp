#include "ops/operators/quantize_tensor_meta.h"

#include <c10/util/Exception.h>
#include <torch/library.h>

#include <narrowcast/quantize_tensor.h>
#include "ops/operators/meta.h"

namespace narrowcast::meta {
namespace {

using QuantLoss = std::optional<double>;

// The collectives send the elements in order. A sparse tensor would have another number of them.
void check_tensor(const std::string& name, const at::Tensor& tensor) {
  check_quantizable(tensor, name);
  TORCH_CHECK_VALUE(tensor.layout() == at::kStrided, name, " must be dense, but has layout ", tensor.layout());
}

// Tensors of one argument; all must be on `device`.
void check_list(const std::string& name, at::TensorList tensors, at::Device device) {
  for (size_t i = 0; i < tensors.size(); ++i) {
    const std::string element = name + "[" + std::to_string(i) + "]";
    check_tensor(element, tensors[i]);
    TORCH_CHECK_VALUE(tensors[i].device() == device, element, " is on ", tensors[i].device(),
                      " but the first tensor is on ", device);
  }
}

// The device that all tensors must be on.
at::Device first_device(const std::string& name, at::TensorList tensors) {
  TORCH_CHECK_VALUE(!tensors.empty(), name, " must hold one tensor per rank, but is empty");
  check_tensor(name + "[0]", tensors[0]);
  return tensors[0].device();
}

}  // namespace

void check_quantizable(const at::Tensor& tensor, const std::string& name) {
  TORCH_CHECK_VALUE(tensor.defined(), name, " is an undefined tensor");
  check_float(name, tensor);
}

void check_dequantizable(const at::Tensor& tensor, const std::string& name) {
  TORCH_CHECK_VALUE(tensor.defined(), name, " is an undefined tensor");
  TORCH_CHECK_TYPE(tensor.scalar_type() == at::kHalf, name, ": tensor dtype is ", tensor.scalar_type(),
                   " while expected to be FP16.");
}

at::Tensor quantize_tensor(const at::Tensor& x, std::string_view qtype) {
  parse_dquant_type(qtype);
  check_quantizable(x, "x");
  return empty(x.sym_sizes(), x, at::kHalf);
}

at::Tensor dequantize_tensor(const at::Tensor& q, std::string_view qtype, QuantLoss) {
  parse_dquant_type(qtype);
  check_dequantizable(q, "q");
  return empty(q.sym_sizes(), q, at::kFloat);
}

void check_all_gather(at::TensorList outputs, const at::Tensor& input) {
  const at::Device device = first_device("outputs", outputs);
  check_list("outputs", outputs, device);
  check_tensor("input", input);
  TORCH_CHECK_VALUE(input.device() == device, "input is on ", input.device(), " but outputs[0] is on ", device);
}

void check_all_to_all(at::TensorList outputs, at::TensorList inputs) {
  const at::Device device = first_device("outputs", outputs);
  check_list("outputs", outputs, device);
  first_device("inputs", inputs);
  check_list("inputs", inputs, device);
}

void check_all_to_all_single(const at::Tensor& output, const at::Tensor& input) {
  check_tensor("output", output);
  check_tensor("input", input);
  TORCH_CHECK_VALUE(input.device() == output.device(), "input is on ", input.device(), " but output is on ",
                    output.device());
  TORCH_CHECK_VALUE(output.dim() >= 1, "output must have a dimension 0 to be split, but is 0-dimensional");
  TORCH_CHECK_VALUE(input.dim() >= 1, "input must have a dimension 0 to be split, but is 0-dimensional");
}

void refuse_async_op() { TORCH_CHECK_VALUE(false, "The async_op=True mode is not supported yet."); }

TORCH_LIBRARY_IMPL(narrowcast, Meta, m) {
  m.impl("quantize_tensor", &quantize_tensor);
  m.impl("dequantize_tensor", &dequantize_tensor);
  m.impl("auto_quantize_all_gather", [](at::TensorList outputs, const at::Tensor& input, std::string_view qtype,
                                        std::string_view, QuantLoss, bool async_op) {
    if (async_op) refuse_async_op();
    parse_dquant_type(qtype);
    check_all_gather(outputs, input);
  });
  m.impl("auto_quantize_all_to_all", [](at::TensorList outputs, at::TensorList inputs, std::string_view qtype,
                                        std::string_view, QuantLoss, bool async_op) {
    if (async_op) refuse_async_op();
    parse_dquant_type(qtype);
    check_all_to_all(outputs, inputs);
  });
  m.impl("auto_quantize_all_to_all_single",
         [](const at::Tensor& output, const at::Tensor& input, std::string_view qtype, std::string_view,
            at::OptionalSymIntArrayRef, at::OptionalSymIntArrayRef, QuantLoss, bool async_op) {
           if (async_op) refuse_async_op();
           parse_dquant_type(qtype);
           check_all_to_all_single(output, input);
         });
}

}  // namespace narrowcast::meta

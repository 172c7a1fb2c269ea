// Every operator's schema with its contract. Kernels are registered beside their code: in this folder if all devices
// share them, as the meta kernels, else in ops/cpu, ops/cuda and ops/collectives.
#include <torch/library.h>

TORCH_LIBRARY(narrowcast, m) {
  // Affine uint8, PyTorch's MinMaxObserver and PerChannelMinMaxObserver (quint8, 0..255, eps 2^-23, axis 0).
  // x: float32, float64, bfloat16 or float16, any strides
  // scale: float32
  // zero point: int32 or float32, a whole number in [0, 255]
  // Everything is on one device. Outputs are contiguous and have no gradient: backward throws.
  //   mn = min(x.min, 0), mx = max(x.max, 0), scale = max((mx - mn) / 255, 2^-23)
  //   zero_point = clamp(0 - round_half_even(mn / scale), 0, 255)
  //
  // If x contains Inf or NaN or its range overflows float32, the zero point is 0 and the scale Inf or NaN. On CUDA, as
  // in PyTorch there, the division by 255 is a multiplication by its reciprocal, and x is divided by the scale rounded
  // to x's dtype.
  //
  // Errors: TypeError for a dtype. ValueError for a shape, a device, an undefined tensor or, on the CPU, a zero point's
  // value. On CUDA, codes of an invalid zero point are meaningless.

  // x [...] -> scale [1] float32, zero_point [1] int32. If x is empty: scale 1, zero point 0.
  m.def("choose_qparams_per_tensor(Tensor x) -> (Tensor scale, Tensor zero_point)");
  // x [C, ...] -> scales [C], zero_points [C]. If C = 0, the results are empty; channels without elements are an error.
  m.def("choose_qparams_per_channel(Tensor x) -> (Tensor scales, Tensor zero_points)");

  // x [...], scale [1] or [], zero_point [1] or [] -> uint8 [...]:
  // clamp(round_half_even(x / scale) + zero_point, 0, 255), computed in x's dtype; NaN gives 0.
  m.def("quantize_per_tensor(Tensor x, Tensor scale, Tensor zero_point) -> Tensor");
  // q uint8 [...] -> float32 [...]: scale * (float(q) - float(zero_point)).
  m.def("dequantize_per_tensor(Tensor q, Tensor scale, Tensor zero_point) -> Tensor");
  // The same per index of axis 0: x [C, ...], scales [C], zero_points [C].
  m.def("quantize_per_channel(Tensor x, Tensor scales, Tensor zero_points) -> Tensor");
  m.def("dequantize_per_channel(Tensor q, Tensor scales, Tensor zero_points) -> Tensor");

  // FP16 and BFP16, PyTorch's torch/distributed/algorithms/_quantization. The qtype is "fp16" or "bfp16". x is float32,
  // float64, bfloat16 or float16; q is float16. Tensors have any number of dimensions and any strides. Outputs are
  // contiguous and have no gradient: backward throws.
  //   fp16:  binary16 of x clamped to +-65504, rounded half to even. As in PyTorch, the limit is rounded to x's dtype:
  //          in bfloat16 it is 65536, so that greater values become Inf
  //   bfp16: the upper half of (bits of float32(x) + 0x8000), carried in a float16 tensor
  //
  // A NaN stays a quiet NaN; otherwise all bits are PyTorch's. The decoded values are divided by quant_loss, rounded to
  // float32; on CUDA, as in PyTorch there, they are multiplied by its reciprocal. Errors: TypeError for a dtype,
  // ValueError for a qtype or an undefined tensor.

  // x [...] -> q [...].
  m.def("quantize_tensor(Tensor x, str qtype) -> Tensor");
  // Each tensor is handled separately: shapes, dtypes and devices may differ. An empty list gives an empty list.
  m.def("quantize_tensor_list(Tensor[] xs, str qtype) -> Tensor[]");
  // q [...] -> float32 [...].
  m.def("dequantize_tensor(Tensor q, str qtype, float? quant_loss=None) -> Tensor");
  m.def("dequantize_tensor_list(Tensor[] qs, str qtype, float? quant_loss=None) -> Tensor[]");

  // PyTorch's collectives with tensors that are sent as FP16 or BFP16; ops/collectives/auto_quantize/exchange.h
  // describes the steps. The group is the one registered as group_name; its ranks call the same collectives in the same
  // order. Tensors have the dtypes of quantize_tensor, are dense, on one device, and of any strides. Outputs are
  // written in place, rounded to their own dtype. For tensors on the meta device a rank checks its arguments, and
  // communicates nothing. Backward through an output throws.
  //
  // Errors, after which the outputs are unchanged:
  // - TypeError for a dtype and ValueError for the rest, also if ranks differ in sizes, qtypes or collectives. All
  //   ranks throw the same error before data is sent. Exception: an unknown group_name is an error on that rank only.
  // - ValueError for async_op=True.
  // - DistBackendError if a peer or the network fails.

  // outputs: W tensors; outputs[r] becomes rank r's input. Inputs may differ in size from rank to rank.
  m.def(
      "auto_quantize_all_gather(Tensor(a!)[] outputs, Tensor input, str qtype, str group_name, "
      "float? quant_loss=None, bool async_op=False) -> ()");
  // W tensors each; outputs[r] becomes inputs[this rank] of rank r, and has as many elements.
  m.def(
      "auto_quantize_all_to_all(Tensor(a!)[] outputs, Tensor[] inputs, str qtype, str group_name, "
      "float? quant_loss=None, bool async_op=False) -> ()");
  // The next input_split_sizes[r] rows of `input` [rows, ...] are sent to rank r; the next output_split_sizes[r] rows
  // of `output` [rows, ...] come from rank r. Without splits, or with empty ones, all ranks get equal parts.
  m.def(
      "auto_quantize_all_to_all_single(Tensor(a!) output, Tensor input, str qtype, str group_name, "
      "SymInt[]? output_split_sizes=None, SymInt[]? input_split_sizes=None, float? quant_loss=None, "
      "bool async_op=False) -> ()");

  // Weight-only int8, PyTorch's benchmarks/gpt_fast/quantize.py. Errors as above.

  // x [C, n] -> codes [C, n] of target_dtype, scales [C] of x's dtype, zero_points [C] int64, all 0.
  // x is float32, float64, bfloat16 or float16, any strides, n >= 1. Symmetric, per row, each step rounded to x's
  // dtype:
  //   scale = max(max|row| / ((quant_max - quant_min) / 2), 2^-23); Inf and NaN stay
  //   code = clamp(round_half_even(x / scale), quant_min, quant_max); NaN gives 0
  //
  // On CUDA, as in PyTorch there, the first division is a multiplication by the reciprocal. The target_dtype is int8 or
  // uint8, or int16 if x is float32 or float64; quant_min < quant_max are both in its range. Outputs are contiguous and
  // have no gradient: backward throws.
  m.def(
      "dynamically_quantize_per_channel(Tensor x, int quant_min, int quant_max, ScalarType target_dtype) -> "
      "(Tensor, Tensor, Tensor)");

  // input [..., in], weight [out, in], scales [out], bias [out] -> [..., out] of input's dtype:
  //   linear(input, weight.to(input.dtype)) * scales + bias
  // The weight is int8; the others are float32, float64, bfloat16 or float16. The input has any strides and any number
  // of leading dimensions. Differentiable in input and bias, in reverse and forward mode; scales that require a
  // gradient are an error. Under autocast an input that is not float64 is first rounded to autocast's dtype, as in
  // at::linear. The rounding error depends on dtype, device and processor; docs/reference/operators.md lists the
  // bounds.
  m.def("weight_only_int8_linear(Tensor input, Tensor weight, Tensor scales, Tensor? bias=None) -> Tensor");

  // Wire formats, in which quantised collectives send tensors. The format is a name in docs/reference/wire-format.md. A
  // NaN or Inf makes its whole block decode as NaN (in variable formats the whole message); in formats without blocks
  // it affects no other element. Outputs are contiguous. There is no gradient: bytes are whole numbers, which are
  // constants to autograd. Errors: TypeError for a dtype, ValueError for a format, a size or an undefined tensor.

  // Bytes of a message of numel >= 0 elements; docs/reference/wire-format.md has the formulas.
  m.def("encoded_size(SymInt numel, str format) -> SymInt");
  // x [...] -> uint8 [encoded_size(x.numel)].
  // x is float32, float64, bfloat16 or float16, any strides, and is first rounded to float32. Rounds to nearest, ties
  // to even. With a seed, rounds at random without bias, by Philox 4x32-10 of seed, step and the element's position,
  // which starts at `offset`. The bytes are the same on every machine and for any number of threads. A slice of x that
  // begins at a block, encoded with its beginning as the offset, gives that slice of the bytes, except in variable
  // formats. The step and the offset are at least 0.
  m.def("encode(Tensor x, str format, *, int? seed=None, int step=0, int offset=0) -> Tensor");
  // bytes uint8 [encoded_size(numel)] -> float32 [numel]. Throws CorruptInputError for another number of bytes.
  m.def("decode(Tensor bytes, str format, SymInt numel) -> Tensor");

  // x [...] -> the mean over the ranks of the group registered as group_name, the same on all ranks, in x's dtype.
  //
  // x is float32, float64, bfloat16 or float16, any strides, with the same number of elements on every rank, on the
  // CPUs or the GPUs of all ranks. It is sent in a wire format and summed in float32. The levels are "auto", "one" or
  // "two" (narrowcast/levels.h); on GPUs there is always one. ops/collectives/all_reduce has the algorithms. Backward
  // through a result throws.
  //
  // Errors:
  // - TypeError for a dtype and ValueError for the rest, also if ranks differ in sizes, formats, levels or kinds of
  //   device. All ranks throw the same error before data is sent. Exception: an unknown group_name is an error on that
  //   rank only.
  // - ValueError for levels "two" if no two ranks share a node, or x is on a GPU.
  // - ValueError for an x written in place whose elements overlap in memory, or whose write autograd does not
  //   permit.
  // - DistBackendError if a peer or the network fails. An x written in place is then undefined.
  m.def("quantized_all_reduce_(Tensor(a!) x, str format, str group_name, str levels=\"auto\") -> ()");
  m.def("quantized_all_reduce(Tensor x, str format, str group_name, str levels=\"auto\") -> Tensor");

  // input [W n] in any shape: the parts for the shards of ranks 0 to W-1, n elements each, on the CPUs or the GPUs of
  // all ranks. `shard`, n elements in any shape, becomes the mean or the sum (op: "mean" or "sum") of the ranks' parts
  // for this rank. Both are float32, float64, bfloat16 or float16, of any strides. Every part, this rank's own
  // included, is sent or decoded as one message in a wire format; ops/collectives/reduce_scatter has the algorithm. The
  // sum is in float32, in the order of ranks, rounded to the shard's dtype. A single rank copies. Backward through
  // `shard` throws.
  //
  // Errors are those of quantized_all_reduce_, also if ranks differ in `op`. A `shard` is undefined after a
  // DistBackendError.
  m.def("quantized_reduce_scatter_(Tensor(a!) shard, Tensor input, str format, str op, str group_name) -> ()");
}

// Every operator's schema with its contract, in one place. Kernels are registered beside their code: here what all
// devices share, else in cpu/, cuda/, meta/ and collectives/.
#include <torch/library.h>

TORCH_LIBRARY(narrowcast, m) {
  // Affine uint8, PyTorch's MinMaxObserver and PerChannelMinMaxObserver (quint8, 0..255, eps 2^-23, axis 0).
  // x: float32, float64, bfloat16 or float16, any strides. scale: float32. zero point: int32 or float32, a whole
  // number in [0, 255]. Everything on one device. Outputs are contiguous and have no gradient: backward throws.
  //   mn = min(x.min, 0), mx = max(x.max, 0), scale = max((mx - mn) / 255, 2^-23)
  //   zero_point = clamp(0 - round_half_even(mn / scale), 0, 255)
  // Inf, NaN or a range that overflows float32: zero point 0 and a scale of Inf or NaN.
  // On CUDA, as PyTorch there, the division by 255 is a multiplication by its reciprocal, and x is divided by the scale
  // rounded to x's dtype.
  // Errors: TypeError for a dtype, ValueError for a shape, a device, an undefined tensor or, on the CPU, a zero point's
  // value; on CUDA its codes mean nothing.

  // x [...] -> scale [1] float32, zero_point [1] int32. An empty x gives scale 1, zero point 0.
  m.def("choose_qparams_per_tensor(Tensor x) -> (Tensor scale, Tensor zero_point)");
  // x [C, ...] -> scales [C], zero_points [C]. C = 0 gives empty results; C > 0 with no elements is an error.
  m.def("choose_qparams_per_channel(Tensor x) -> (Tensor scales, Tensor zero_points)");

  // x [...], scale [1] or [], zero_point [1] or [] -> uint8 [...]:
  // clamp(round_half_even(x / scale) + zero_point, 0, 255), computed in x's dtype; NaN gives 0.
  m.def("quantize_per_tensor(Tensor x, Tensor scale, Tensor zero_point) -> Tensor");
  // q uint8 [...] -> float32 [...]: scale * (float(q) - float(zero_point)).
  m.def("dequantize_per_tensor(Tensor q, Tensor scale, Tensor zero_point) -> Tensor");
  // The same per index of axis 0: x [C, ...], scales [C], zero_points [C].
  m.def("quantize_per_channel(Tensor x, Tensor scales, Tensor zero_points) -> Tensor");
  m.def("dequantize_per_channel(Tensor q, Tensor scales, Tensor zero_points) -> Tensor");

  // FP16 and BFP16, PyTorch's torch/distributed/algorithms/_quantization. qtype: "fp16" or "bfp16".
  // x: float32, float64, bfloat16 or float16; q: float16. Any number of dimensions, any strides. Outputs are
  // contiguous and have no gradient: backward throws.
  //   fp16:  binary16 of x clamped to +-65504 (rounded to x's dtype, as PyTorch does: in bfloat16 65536, so that
  //          greater values become Inf), rounded half to even
  //   bfp16: the upper half of (bits of float32(x) + 0x8000), carried in a float16 tensor
  // A NaN stays a quiet NaN; else all bits are PyTorch's. quant_loss, rounded to float32, divides what is decoded;
  // on CUDA, as PyTorch there, its reciprocal multiplies it.
  // Errors: TypeError for a dtype, ValueError for a qtype or an undefined tensor.

  // x [...] -> q [...].
  m.def("quantize_tensor(Tensor x, str qtype) -> Tensor");
  // Each tensor by itself: shapes, dtypes and devices may differ. An empty list gives an empty list.
  m.def("quantize_tensor_list(Tensor[] xs, str qtype) -> Tensor[]");
  // q [...] -> float32 [...].
  m.def("dequantize_tensor(Tensor q, str qtype, float? quant_loss=None) -> Tensor");
  m.def("dequantize_tensor_list(Tensor[] qs, str qtype, float? quant_loss=None) -> Tensor[]");

  // PyTorch's collectives with tensors that travel as FP16 or BFP16; ops/collectives/auto_quantize/exchange.h tells
  // how. The group is the one registered as group_name; its ranks call the same collectives in the same order. Tensors:
  // the dtypes of quantize_tensor, dense, all on one device, any strides; outputs are written in place, rounded to
  // their own dtype. Errors: TypeError for a dtype; ValueError for the rest, and for ranks whose sizes, qtypes or
  // collectives differ: on all ranks the same, before data is sent; DistBackendError if a peer or the network fails.
  // Then the outputs are unchanged. An unknown group_name is an error on one rank alone. For tensors on the meta device
  // a rank checks its arguments, and communicates nothing. async_op=True is an error. Backward through an output
  // throws.

  // outputs: W tensors; outputs[r] becomes rank r's input. Inputs may differ in size from rank to rank.
  m.def(
      "auto_quantize_all_gather(Tensor(a!)[] outputs, Tensor input, str qtype, str group_name, "
      "float? quant_loss=None, bool async_op=False) -> ()");
  // W tensors each; outputs[r] becomes inputs[this rank] of rank r, and has as many elements.
  m.def(
      "auto_quantize_all_to_all(Tensor(a!)[] outputs, Tensor[] inputs, str qtype, str group_name, "
      "float? quant_loss=None, bool async_op=False) -> ()");
  // input [rows, ...]: the next input_split_sizes[r] rows go to rank r; output [rows, ...]: the next
  // output_split_sizes[r] rows come from rank r. Without splits, or with empty ones, all ranks get equal parts.
  m.def(
      "auto_quantize_all_to_all_single(Tensor(a!) output, Tensor input, str qtype, str group_name, "
      "SymInt[]? output_split_sizes=None, SymInt[]? input_split_sizes=None, float? quant_loss=None, "
      "bool async_op=False) -> ()");

  // Weight-only int8, PyTorch's benchmarks/gpt_fast/quantize.py. Errors as above.

  // x [C, n] float32, float64, bfloat16 or float16, any strides, n >= 1 -> codes [C, n] of target_dtype, scales [C] of
  // x's dtype, zero_points [C] int64, all 0. Symmetric, per row, each step rounded to x's dtype:
  //   scale = max(max|row| / ((quant_max - quant_min) / 2), 2^-23); Inf and NaN stay
  //   code = clamp(round_half_even(x / scale), quant_min, quant_max); NaN gives 0
  // On CUDA, as PyTorch there, the first division is a multiplication by the reciprocal.
  // target_dtype: int8 or uint8, or int16 where x is float32 or float64; quant_min < quant_max, both in its range.
  // Outputs are contiguous and have no gradient: backward throws.
  m.def(
      "dynamically_quantize_per_channel(Tensor x, int quant_min, int quant_max, ScalarType target_dtype) -> "
      "(Tensor, Tensor, Tensor)");

  // input [..., in] float32, float64, bfloat16 or float16, any strides, any leading dimensions or none; weight
  // [out, in] int8; scales [out] and bias [out] of any of these dtypes -> [..., out] of input's dtype:
  //   linear(input, weight.to(input.dtype)) * scales + bias
  // Differentiable in input and bias, in reverse and forward mode; scales that require a gradient are an error. Under
  // autocast an input that is not float64 is rounded to its dtype first, as in at::linear.
  // How exact it is depends on dtype, device and processor: docs/operators.md has the bounds.
  m.def("weight_only_int8_linear(Tensor input, Tensor weight, Tensor scales, Tensor? bias=None) -> Tensor");

  // Wire formats: what quantised collectives send. format: a name in docs/wire_format.md. A NaN or Inf makes its whole
  // block decode as NaN; in a format without blocks it stays, by itself. Outputs are contiguous. Bytes are whole
  // numbers, constants to autograd: there is no gradient. Errors: TypeError for a dtype, ValueError for a format, a
  // size or an undefined tensor.

  // Bytes of a message of numel >= 0 elements: ceil(numel * bits / 8), and 2 for each block or part of one.
  m.def("encoded_size(SymInt numel, str format) -> SymInt");
  // x [...] float32, float64, bfloat16 or float16, any strides, rounded to float32 -> uint8 [encoded_size(x.numel)].
  // Rounds to nearest, ties to even; with a seed at random, without bias, by Philox 4x32-10 of seed, step and the
  // element's position, which is offset for the first: equal bytes on every machine and number of threads. A slice of
  // x that begins at a block, and says so with its offset, becomes that slice of the bytes. step, offset >= 0.
  m.def("encode(Tensor x, str format, *, int? seed=None, int step=0, int offset=0) -> Tensor");
  // bytes uint8 [encoded_size(numel)] -> float32 [numel]. CorruptInputError for another number of bytes.
  m.def("decode(Tensor bytes, str format, SymInt numel) -> Tensor");

  // The mean over the ranks of the group registered as group_name, sent in a wire format and summed in float32, in one
  // level whatever nodes the ranks are on; ops/collectives/all_reduce has the algorithms. x [...] float32, float64,
  // bfloat16 or float16, any strides, as many elements on every rank, on the CPUs or GPUs of all -> the same on all
  // ranks, in x's dtype. Errors: TypeError for a dtype; ValueError for the rest (also for an x written in place that
  // has several elements in one place or that autograd does not let be written), and for ranks whose sizes, formats or
  // kinds of device differ: on all ranks the same, before data is sent (but on one rank alone for an unknown
  // group_name); DistBackendError if a peer or the network fails, after which an x written in place is undefined.
  // Backward through a result throws.
  m.def("quantized_all_reduce_(Tensor(a!) x, str format, str group_name) -> ()");
  m.def("quantized_all_reduce(Tensor x, str format, str group_name) -> Tensor");
}

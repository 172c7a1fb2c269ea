// Collectives that send tensors as FP16 or BFP16, half the bytes of float32:
//
//   const auto all_gather = auto_quantize(collectives::all_gather, DQuantType::kFp16);
//   all_gather(outputs, input, group);
//
// The equivalent of auto_quantize of PyTorch's torch/distributed/algorithms/_quantization, except that outputs are
// written in place. Tensors are float32, float64, bfloat16 or float16, dense, of any strides, all on one device;
// outputs are rounded to their own dtype. The operators auto_quantize_all_gather and so on do the same, and take the
// group by its registered name; see docs/reference/operators.md.
//
// A callable is as thread-safe as its group: all ranks call the same collectives of a group in the same order. Every
// call waits until all ranks have made it and agree on sizes. Errors, after which the outputs are unchanged:
//
// - c10::ValueError or c10::TypeError, before data is sent and the same on all ranks: ranks disagree, or one rank's own
//   arguments are wrong. Exception: if a rank's group is null, only that rank throws.
// - c10::DistBackendError: a peer or the network failed.
//
// There are no gradients: backward through an output throws.
#pragma once

#include <ATen/core/Tensor.h>
#include <c10/util/OptionalArrayRef.h>
#include <c10/util/intrusive_ptr.h>

#include <optional>
#include <torch/csrc/distributed/c10d/ProcessGroup.hpp>
#include <torch/csrc/distributed/c10d/Work.hpp>

#include <narrowcast/export.h>
#include <narrowcast/quantize_tensor.h>

namespace NARROWCAST_EXPORT narrowcast {

namespace collectives {

// The participating ranks.
using Group = c10::intrusive_ptr<c10d::ProcessGroup>;
// A collective in progress.
using Work = c10::intrusive_ptr<c10d::Work>;

// The encoding of tensors that are sent.
struct Encoding {
  DQuantType qtype = DQuantType::kFp16;  // The format of each element.
  std::optional<double> quant_loss;      // Divides the decoded values.
};

// Names a collective for auto_quantize: each rank's tensor is sent to all ranks.
struct AllGather {};
// Names a collective for auto_quantize: each rank has a tensor for each rank.
struct AllToAll {};
// Names a collective for auto_quantize: each rank has rows of one tensor for each rank.
struct AllToAllSingle {};
// First argument of auto_quantize for an all-gather.
inline constexpr AllGather all_gather;
// First argument of auto_quantize for an all-to-all of lists.
inline constexpr AllToAll all_to_all;
// First argument of auto_quantize for an all-to-all of rows.
inline constexpr AllToAllSingle all_to_all_single;

}  // namespace collectives

// An all-gather among W ranks. `outputs` holds W tensors; outputs[r] becomes rank r's input, and has as many elements.
class AutoQuantizedAllGather {
 public:
  // `encoding` is valid: auto_quantize makes these objects.
  explicit AutoQuantizedAllGather(collectives::Encoding encoding) : encoding_(encoding) {}

  // Returns when the outputs are written.
  void operator()(at::TensorList outputs, const at::Tensor& input, const collectives::Group& group) const;

  // Returns when the data is being sent. The input may be changed at once. The outputs are written when the work, or
  // its future, is complete; the thread that completes it decodes. The future's value is the list of the outputs.
  collectives::Work async(at::TensorList outputs, const at::Tensor& input, const collectives::Group& group) const;

 private:
  collectives::Encoding encoding_;
};

// An all-to-all of lists among W ranks. `outputs` and `inputs` hold W tensors each. On every rank, outputs[r] becomes
// inputs[this rank] of rank r, and has as many elements.
class AutoQuantizedAllToAll {
 public:
  // `encoding` is valid: auto_quantize makes these objects.
  explicit AutoQuantizedAllToAll(collectives::Encoding encoding) : encoding_(encoding) {}

  // Returns when the outputs are written.
  void operator()(at::TensorList outputs, at::TensorList inputs, const collectives::Group& group) const;

  // See AutoQuantizedAllGather::async.
  collectives::Work async(at::TensorList outputs, at::TensorList inputs, const collectives::Group& group) const;

 private:
  collectives::Encoding encoding_;
};

// An all-to-all of rows. The next input_split_sizes[r] rows of `input` [rows, ...] are sent to rank r; the next
// output_split_sizes[r] rows of `output` [rows, ...] come from rank r. Without splits, or with empty ones, all ranks
// get equal parts.
class AutoQuantizedAllToAllSingle {
 public:
  // `encoding` is valid: auto_quantize makes these objects.
  explicit AutoQuantizedAllToAllSingle(collectives::Encoding encoding) : encoding_(encoding) {}

  // Returns when the output is written.
  void operator()(const at::Tensor& output, const at::Tensor& input, at::OptionalIntArrayRef output_split_sizes,
                  at::OptionalIntArrayRef input_split_sizes, const collectives::Group& group) const;
  // Does the same with equal parts.
  void operator()(const at::Tensor& output, const at::Tensor& input, const collectives::Group& group) const;

  // See AutoQuantizedAllGather::async.
  collectives::Work async(const at::Tensor& output, const at::Tensor& input, at::OptionalIntArrayRef output_split_sizes,
                          at::OptionalIntArrayRef input_split_sizes, const collectives::Group& group) const;
  // Does the same with equal parts.
  collectives::Work async(const at::Tensor& output, const at::Tensor& input, const collectives::Group& group) const;

 private:
  collectives::Encoding encoding_;
};

// Makes an all-gather that sends tensors as `qtype`; quant_loss divides the decoded values. Throws c10::ValueError if
// `qtype` is not a valid DQuantType.
inline AutoQuantizedAllGather auto_quantize(collectives::AllGather, DQuantType qtype,
                                            std::optional<double> quant_loss = std::nullopt) {
  to_string(qtype);  // Throws.
  return AutoQuantizedAllGather({qtype, quant_loss});
}

// Makes an all-to-all of lists, with the same arguments and the same error.
inline AutoQuantizedAllToAll auto_quantize(collectives::AllToAll, DQuantType qtype,
                                           std::optional<double> quant_loss = std::nullopt) {
  to_string(qtype);
  return AutoQuantizedAllToAll({qtype, quant_loss});
}

// Makes an all-to-all of rows, with the same arguments and the same error.
inline AutoQuantizedAllToAllSingle auto_quantize(collectives::AllToAllSingle, DQuantType qtype,
                                                 std::optional<double> quant_loss = std::nullopt) {
  to_string(qtype);
  return AutoQuantizedAllToAllSingle({qtype, quant_loss});
}

}  // namespace narrowcast

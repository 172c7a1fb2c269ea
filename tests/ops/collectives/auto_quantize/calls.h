// The ways to call the auto_quantize collectives, so that each test can go through all of them.
#pragma once

#include <ATen/ATen.h>
#include <ATen/core/dispatch/Dispatcher.h>
#include <gtest/gtest.h>

#include <optional>
#include <string>
#include <utility>
#include <vector>

#include <narrowcast/auto_quantize.h>
#include "tests/support/registered_group.h"

namespace narrowcast::test {

using collectives::Group;
using testing::RegisteredGroup;

enum class Way {
  kCall,      // The callable of auto_quantize.
  kAsync,     // Its asynchronous form, waited for.
  kOperator,  // The registered operator, as TorchScript and Python call it.
};
inline const std::vector<Way> kWays{Way::kCall, Way::kAsync, Way::kOperator};

// Calls an operator of the project with its arguments in order. The last ones may be left to their defaults.
template <class... Arguments>
void call_operator(const std::string& name, Arguments&&... arguments) {
  const auto op = c10::Dispatcher::singleton().findSchemaOrThrow(("narrowcast::" + name).c_str(), "");
  torch::jit::Stack stack{c10::IValue(std::forward<Arguments>(arguments))...};
  for (size_t i = stack.size(); i < op.schema().arguments().size(); ++i) {
    stack.push_back(op.schema().arguments()[i].default_value().value());
  }
  op.callBoxed(stack);
}

// The encoding of a call's tensors, and the way to make the call.
struct Call {
  Way way = Way::kCall;
  DQuantType qtype = DQuantType::kFp16;
  std::optional<double> quant_loss = std::nullopt;

  std::string name() const { return std::string(to_string(qtype)); }
};

inline void all_gather(const Call& call, const std::vector<at::Tensor>& outputs, const at::Tensor& input,
                       const Group& group) {
  const auto collective = auto_quantize(collectives::all_gather, call.qtype, call.quant_loss);
  if (call.way == Way::kCall) {
    collective(outputs, input, group);
  } else if (call.way == Way::kAsync) {
    collective.async(outputs, input, group)->wait();
  } else {
    const RegisteredGroup registered(group);
    call_operator("auto_quantize_all_gather", outputs, input, call.name(), registered.name(), call.quant_loss);
  }
}

inline void all_to_all(const Call& call, const std::vector<at::Tensor>& outputs, const std::vector<at::Tensor>& inputs,
                       const Group& group) {
  const auto collective = auto_quantize(collectives::all_to_all, call.qtype, call.quant_loss);
  if (call.way == Way::kCall) {
    collective(outputs, inputs, group);
  } else if (call.way == Way::kAsync) {
    collective.async(outputs, inputs, group)->wait();
  } else {
    const RegisteredGroup registered(group);
    call_operator("auto_quantize_all_to_all", outputs, inputs, call.name(), registered.name(), call.quant_loss);
  }
}

// Rows per rank; empty: equal parts.
struct RowSplits {
  std::vector<int64_t> output;
  std::vector<int64_t> input;
};

inline void all_to_all_single(const Call& call, const at::Tensor& output, const at::Tensor& input,
                              const RowSplits& splits, const Group& group) {
  const auto collective = auto_quantize(collectives::all_to_all_single, call.qtype, call.quant_loss);
  if (call.way == Way::kCall) {
    collective(output, input, splits.output, splits.input, group);
  } else if (call.way == Way::kAsync) {
    collective.async(output, input, splits.output, splits.input, group)->wait();
  } else {
    const RegisteredGroup registered(group);
    call_operator("auto_quantize_all_to_all_single", output, input, call.name(), registered.name(), splits.output,
                  splits.input, call.quant_loss);
  }
}

}  // namespace narrowcast::test

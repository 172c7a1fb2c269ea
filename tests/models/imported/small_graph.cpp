// The compiled graphs of SmallPackage (small_package.h), as AOTInductor makes them: LibTorch loads this library and
// calls the C functions at the end. The library takes LibTorch's symbols from the program.
#include <ATen/ATen.h>
#include <ATen/core/dispatch/Dispatcher.h>
#include <torch/csrc/inductor/aoti_runtime/interface.h>

#include <cstdint>
#include <exception>
#include <iostream>
#include <stdexcept>
#include <string>
#include <vector>

namespace {

// SmallPackage changes the word after the colon in its copies of this library. It selects the graph: "train",
// "evaluate", "short" (a training step without its last output), or "fail".
const volatile char kGraph[] = "small_graph:train...........";

std::string graph() {
  std::string text;
  for (const volatile char* next = kGraph; *next != '\0'; ++next) text += *next;
  text.erase(0, text.find(':') + 1);
  return text.substr(0, text.find('.'));
}

size_t count_outputs() {
  constexpr size_t kOfTraining = 19;
  if (graph() == "evaluate") return 2;
  return graph() == "short" ? kOfTraining - 1 : kOfTraining;
}

// The state in the manifest's order, then the batch.
struct Inputs {
  explicit Inputs(std::vector<at::Tensor>& all) {
    if (all.size() != 15) throw std::runtime_error("15 inputs were expected");
    at::Tensor* const members[] = {&weight, &shift, &bias,    &first,    &second, &level,  &drift,  &spare,
                                   &scale,  &steps, &current, &previous, &offset, &inputs, &targets};
    for (size_t i = 0; i < all.size(); ++i) *members[i] = std::move(all[i]);
  }

  at::Tensor weight, shift, bias, first, second, level, drift, spare, scale, steps, current, previous, offset;
  at::Tensor inputs, targets;
};

// Reports that a gradient is complete. The memory of the third parameter's gradient is used again afterwards.
at::Tensor report(const at::Tensor& gradient, int64_t parameter) {
  static const auto gradient_ready = c10::Dispatcher::singleton()
                                         .findSchemaOrThrow("narrowcast::gradient_ready", "")
                                         .typed<at::Tensor(const at::Tensor&, int64_t)>();
  if (parameter != 2) return gradient_ready.call(gradient, parameter);
  const at::Tensor reported = gradient.clone();
  at::Tensor signal = gradient_ready.call(reported, parameter);
  reported.fill_(100);
  return signal;
}

std::vector<at::Tensor> run(const Inputs& in) {
  if (graph() == "fail") throw std::runtime_error("this graph fails");
  const at::Tensor scaled = in.inputs * in.scale;
  const at::Tensor logits = at::addmm(in.bias + in.offset, scaled, (in.weight + in.shift).t());
  const bool has_classes = in.targets.scalar_type() == at::kLong;
  const at::Tensor own_loss =
      has_classes ? at::cross_entropy_loss(logits, in.targets) : at::mse_loss(logits, in.targets);
  const at::Tensor loss = own_loss + (in.first * in.second).sum() + in.level.mean() + (in.drift * in.current).sum();
  if (graph() == "evaluate") return {loss, logits};
  const at::Tensor of_logits = has_classes
                                   ? (logits.softmax(1) - at::one_hot(in.targets, logits.size(1))) / logits.size(0)
                                   : (logits - in.targets) * (2.0 / static_cast<double>(logits.numel()));
  // As those of AOTInductor, outputs are not contiguous, the same tensor twice, or inputs.
  const at::Tensor of_weight = scaled.t().mm(of_logits).t();
  const std::vector<at::Tensor> gradients = {
      of_weight,
      of_weight,  // of shift
      of_logits.sum(0),
      in.second,  // of first
      in.first,   // of second
      at::full({}, 1.0 / static_cast<double>(in.level.numel())).expand_as(in.level),
      in.current,  // of drift
      at::zeros_like(in.spare)};
  std::vector<at::Tensor> outputs = {loss};
  outputs.insert(outputs.end(), gradients.begin(), gradients.end());
  outputs.push_back(in.steps + 1);
  outputs.push_back(in.inputs.mean(0));  // the new value of current
  outputs.push_back(in.current);         // the new value of previous
  for (const int64_t parameter : {6, 5, 4, 3, 2, 1, 0}) {
    outputs.push_back(report(gradients[static_cast<size_t>(parameter)], parameter));
  }
  outputs.resize(count_outputs());
  return outputs;
}

}  // namespace

#define NARROWCAST_UNUSED_FUNCTION(name, ...) \
  AOTI_API AOTIRuntimeError name(__VA_ARGS__) { return AOTI_RUNTIME_FAILURE; }

extern "C" {

AOTI_API AOTIRuntimeError AOTInductorModelContainerCreateWithDevice(AOTInductorModelContainerHandle* container,
                                                                    size_t /*models*/, const char* /*device*/,
                                                                    const char* /*cubins*/) {
  *container = nullptr;
  return AOTI_RUNTIME_SUCCESS;
}

AOTI_API AOTIRuntimeError AOTInductorModelContainerDelete(AOTInductorModelContainerHandle /*container*/) {
  return AOTI_RUNTIME_SUCCESS;
}

AOTI_API AOTIRuntimeError AOTInductorModelContainerGetNumOutputs(AOTInductorModelContainerHandle /*container*/,
                                                                 size_t* outputs) {
  *outputs = count_outputs();
  return AOTI_RUNTIME_SUCCESS;
}

AOTI_API AOTIRuntimeError AOTInductorModelContainerRun(AOTInductorModelContainerHandle /*container*/,
                                                       AtenTensorHandle* input_handles, size_t inputs,
                                                       AtenTensorHandle* output_handles, size_t /*outputs*/,
                                                       AOTInductorStreamHandle /*stream*/,
                                                       AOTIProxyExecutorHandle /*executor*/) {
  std::vector<at::Tensor> all;
  for (size_t i = 0; i < inputs; ++i) {
    auto* const tensor = reinterpret_cast<at::Tensor*>(input_handles[i]);
    all.push_back(std::move(*tensor));
    delete tensor;
  }
  try {
    for (at::Tensor& tensor : run(Inputs(all))) {
      *output_handles++ = reinterpret_cast<AtenTensorHandle>(new at::Tensor(std::move(tensor)));
    }
    return AOTI_RUNTIME_SUCCESS;
  } catch (const std::exception& error) {
    std::cerr << "Error: " << error.what() << std::endl;
    return AOTI_RUNTIME_FAILURE;
  }
}

AOTI_API AOTIRuntimeError AOTInductorModelContainerGetNumConstants(AOTInductorModelContainerHandle /*container*/,
                                                                   size_t* constants) {
  *constants = 0;
  return AOTI_RUNTIME_SUCCESS;
}

// LibTorch looks for them, but narrowcast does not use them.
using Container = AOTInductorModelContainerHandle;
NARROWCAST_UNUSED_FUNCTION(AOTInductorModelContainerGetConstantName, Container, size_t, const char**)
NARROWCAST_UNUSED_FUNCTION(AOTInductorModelContainerGetConstantOriginalFQN, Container, size_t, const char**)
NARROWCAST_UNUSED_FUNCTION(AOTInductorModelContainerGetConstantDtype, Container, size_t, int32_t*)
NARROWCAST_UNUSED_FUNCTION(AOTInductorModelContainerExtractConstantsMap, Container, AOTInductorConstantMapHandle, bool)
NARROWCAST_UNUSED_FUNCTION(AOTInductorModelContainerUpdateUserManagedConstantBuffer, Container,
                           AOTInductorConstantMapHandle, bool, bool)
NARROWCAST_UNUSED_FUNCTION(AOTInductorModelContainerUpdateConstantBuffer, Container, AOTInductorConstantMapHandle, bool,
                           bool)
NARROWCAST_UNUSED_FUNCTION(AOTInductorModelContainerUpdateInactiveConstantBuffer, Container,
                           AOTInductorConstantMapHandle)
NARROWCAST_UNUSED_FUNCTION(AOTInductorModelContainerFreeInactiveConstantBuffer, Container)
NARROWCAST_UNUSED_FUNCTION(AOTInductorModelContainerRunConstantFolding, Container, bool, AOTInductorStreamHandle,
                           AOTIProxyExecutorHandle)
NARROWCAST_UNUSED_FUNCTION(AOTInductorModelContainerSwapConstantBuffer, Container)
NARROWCAST_UNUSED_FUNCTION(AOTInductorModelContainerGetCallSpec, Container, const char**, const char**)
NARROWCAST_UNUSED_FUNCTION(AOTInductorModelContainerGetConstantsBlobSize, Container, uint64_t*)
NARROWCAST_UNUSED_FUNCTION(AOTInductorModelUpdateConstantsFromBlob, Container, const uint8_t*)

}  // extern "C"

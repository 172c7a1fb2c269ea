#include "models/imported/compiled_graph.h"

#include <ATen/Context.h>
#include <ATen/Parallel.h>
#include <c10/core/GradMode.h>
#include <c10/util/Exception.h>
#include <torch/csrc/inductor/aoti_runner/model_container_runner_cpu.h>
#include <torch/library.h>

#include <exception>
#include <fstream>
#include <mutex>
#include <optional>

#include "ops/common/error_message.h"
#include "trainer/base/files/temporary_folder.h"

namespace narrowcast::models {
namespace {

void write(const std::string& path, const std::string& bytes) {
  std::ofstream file(path, std::ios::binary);
  file.write(bytes.data(), static_cast<std::streamsize>(bytes.size()));
  file.close();
  TORCH_CHECK_VALUE(!file.fail(), "TMPDIR: ", path, " cannot be written; is the disk full?");
}

// The function that gets the gradients of the graph that this thread runs.
class Receiver {
 public:
  explicit Receiver(const OnGradient& on_gradient) : on_gradient_(on_gradient), outer_(current) { current = this; }
  ~Receiver() { current = outer_; }
  Receiver(const Receiver&) = delete;
  Receiver& operator=(const Receiver&) = delete;

  // Compiled code turns exceptions into a number. So an exception is kept, and later gradients are ignored.
  static at::Tensor gradient_ready(const at::Tensor& gradient, int64_t parameter) {
    if (current != nullptr) current->receive(parameter, gradient);
    return gradient.new_empty({0});
  }

  void rethrow_failure() const {
    if (failure_ != nullptr) std::rethrow_exception(failure_);
  }

 private:
  void receive(int64_t parameter, const at::Tensor& gradient) {
    if (failure_ != nullptr || !on_gradient_) return;
    try {
      on_gradient_(parameter, gradient);
    } catch (...) {
      failure_ = std::current_exception();
    }
  }

  static thread_local Receiver* current;

  const OnGradient& on_gradient_;
  Receiver* const outer_;
  std::exception_ptr failure_;
};

thread_local Receiver* Receiver::current = nullptr;

TORCH_LIBRARY_FRAGMENT(narrowcast, library) {
  library.def("gradient_ready(Tensor gradient, int parameter) -> Tensor");
  library.impl("gradient_ready", c10::DispatchKey::CompositeExplicitAutograd, Receiver::gradient_ready);
}

// Settings of LibTorch.
struct Determinism {
  bool is_on = false;
  bool warns_only = false;
  bool fills = false;
};

Determinism determinism() {
  const at::Context& context = at::globalContext();
  return {.is_on = context.deterministicAlgorithms(),
          .warns_only = context.deterministicAlgorithmsWarnOnly(),
          .fills = context.deterministicFillUninitializedMemory()};
}

void set(const Determinism& setting) {
  at::globalContext().setDeterministicAlgorithms(setting.is_on, setting.warns_only);
  at::globalContext().setDeterministicFillUninitializedMemory(setting.fills);
}

// With several threads, some of LibTorch's operators add numbers in an order that varies, except in this mode. The mode
// is the process's: graphs that run at the same time share it, and the last one restores the settings.
class DeterministicOperators {
 public:
  DeterministicOperators() {
    const std::lock_guard lock(mutex_);
    if (count_++ > 0) return;
    before_ = determinism();
    set({.is_on = true, .warns_only = !before_.is_on || before_.warns_only, .fills = false});
  }
  ~DeterministicOperators() {
    const std::lock_guard lock(mutex_);
    if (--count_ == 0) set(before_);
  }
  DeterministicOperators(const DeterministicOperators&) = delete;
  DeterministicOperators& operator=(const DeterministicOperators&) = delete;

 private:
  static inline std::mutex mutex_;
  static inline int64_t count_ = 0;
  static inline Determinism before_;
};

}  // namespace

CompiledGraph::CompiledGraph(const std::string& name, const CompiledFiles& files) : name_(name) {
  const files::TemporaryFolder folder("narrowcast-package");
  const std::string library = folder.path() + "/graph.so";
  write(library, files.library);
  if (!files.operators.empty()) {
    write(folder.path() + "/graph.json", files.operators);  // The runner looks for it beside the library.
  }
  folder.check_can_execute();
  try {
    runner_ = std::make_unique<torch::inductor::AOTIModelContainerRunnerCpu>(library);
  } catch (const std::exception& error) {
    TORCH_CHECK_VALUE(false, name, ": cannot be loaded: ", first_line(error_message(error)));
  }
}

CompiledGraph::~CompiledGraph() = default;

std::vector<at::Tensor> CompiledGraph::run(const std::vector<at::Tensor>& inputs, const OnGradient& on_gradient) const {
  const at::NoGradGuard no_grad;
  std::optional<DeterministicOperators> deterministic;
  if (at::get_num_threads() > 1) {
    deterministic.emplace();
  }
  const Receiver receiver(on_gradient);
  std::vector<at::Tensor> outputs;
  try {
    outputs = runner_->run(inputs);
  } catch (const std::exception& error) {
    TORCH_CHECK_VALUE(false, name_,
                      " failed; AOTInductor's message is on this rank's stderr: ", first_line(error_message(error)));
  }
  receiver.rethrow_failure();
  return outputs;
}

}  // namespace narrowcast::models

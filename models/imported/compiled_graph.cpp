#include "models/imported/compiled_graph.h"

#include <ATen/Context.h>
#include <ATen/Parallel.h>
#include <c10/core/GradMode.h>
#include <c10/util/Exception.h>
#include <torch/csrc/inductor/aoti_runner/model_container_runner_cpu.h>

#include <exception>
#include <fstream>
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

// With several threads, some of LibTorch's operators add numbers in an order that varies, unless they are told not to.
class DeterministicOperators {
 public:
  DeterministicOperators() {
    context_.setDeterministicAlgorithms(true, /*warn_only=*/true);
    context_.setDeterministicFillUninitializedMemory(false);
  }
  ~DeterministicOperators() {
    context_.setDeterministicAlgorithms(is_on_, warns_only_);
    context_.setDeterministicFillUninitializedMemory(fills_);
  }
  DeterministicOperators(const DeterministicOperators&) = delete;
  DeterministicOperators& operator=(const DeterministicOperators&) = delete;

 private:
  at::Context& context_ = at::globalContext();
  const bool is_on_ = context_.deterministicAlgorithms();
  const bool warns_only_ = context_.deterministicAlgorithmsWarnOnly();
  const bool fills_ = context_.deterministicFillUninitializedMemory();
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

std::vector<at::Tensor> CompiledGraph::run(const std::vector<at::Tensor>& inputs) const {
  const at::NoGradGuard no_grad;
  std::optional<DeterministicOperators> deterministic;
  if (at::get_num_threads() > 1) {
    deterministic.emplace();
  }
  try {
    return runner_->run(inputs);
  } catch (const std::exception& error) {
    TORCH_CHECK_VALUE(false, name_, " failed, see the message above: ", first_line(error_message(error)));
  }
}

}  // namespace narrowcast::models

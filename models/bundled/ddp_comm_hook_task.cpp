#include "models/bundled/ddp_comm_hook_task.h"

#include <ATen/ATen.h>
#include <ATen/CPUGeneratorImpl.h>
#include <c10/util/Exception.h>

namespace narrowcast::models {
namespace {

constexpr int64_t kRows = 40;
constexpr int64_t kColumns = 20;
constexpr uint64_t kParameterSeed = 0;
constexpr uint64_t kInputSeed = 2020;

at::Tensor seeded_randn(uint64_t seed) {
  return at::randn({kRows, kColumns}, at::detail::createCPUGenerator(seed), at::kFloat);
}

void check_no_options(const ModelOptions& options) {
  TORCH_CHECK_VALUE(options.empty(), "ddp_comm_hook_task: has no options, but was given ", options.begin()->first);
}

}  // namespace

class DdpCommHookTask::Task : public torch::nn::Module {
 public:
  Task() : p_(register_parameter("p", seeded_randn(kParameterSeed))) {}

  at::Tensor forward(const at::Tensor& x) { return p_ * x; }

 private:
  at::Tensor p_;
};

DdpCommHookTask::DdpCommHookTask() : Model("DdpCommHookTask"), t0_(register_module("t0", std::make_shared<Task>())) {}

DdpCommHookTask::~DdpCommHookTask() = default;

std::shared_ptr<DdpCommHookTask> DdpCommHookTask::create(const ModelOptions& options) {
  check_no_options(options);
  return std::make_shared<DdpCommHookTask>();
}

int64_t DdpCommHookTask::count_parameters(const ModelOptions& options) {
  check_no_options(options);
  return kRows * kColumns;
}

at::Tensor DdpCommHookTask::forward(const at::Tensor& x, int64_t rank) {
  TORCH_CHECK_TYPE(x.is_floating_point(), "ddp_comm_hook_task: x must be floating, but is ", x.scalar_type());
  TORCH_CHECK_VALUE(x.sizes() == at::IntArrayRef({kRows, kColumns}), "ddp_comm_hook_task: x must be [40, 20], but is ",
                    x.sizes());
  TORCH_CHECK_VALUE(rank >= 0, "ddp_comm_hook_task: rank must be at least 0, but is ", rank);
  return t0_->forward(x.pow(1 + rank));
}

at::Tensor DdpCommHookTask::forward(const Batch& batch) {
  TORCH_CHECK_VALUE(batch.targets.numel() == 1 && batch.targets.scalar_type() == at::kLong,
                    "ddp_comm_hook_task: targets must be the rank as one int64, but are ", batch.targets.scalar_type(),
                    " ", batch.targets.sizes());
  return forward(batch.inputs, batch.targets.item<int64_t>()).mean();
}

Batch DdpCommHookTask::reference_batch(int64_t rank) {
  return {seeded_randn(kInputSeed), at::scalar_tensor(rank, at::kLong)};
}

ModelOptions DdpCommHookTask::options() const { return {}; }

}  // namespace narrowcast::models

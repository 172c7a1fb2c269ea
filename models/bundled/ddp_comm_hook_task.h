// The model of PyTorch's own test of its communication hooks
// (test/distributed/algorithms/ddp_comm_hooks/test_ddp_hooks.py).
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include <narrowcast/model.h>

namespace narrowcast::models {

// TestDdpCommHook: one parameter `t0.p`, float32 [40, 20]. It always starts with the values of randn(40, 20) after
// manual_seed(0), as upstream's does. They come from a separate generator: LibTorch's default generator is neither read
// nor changed, whereas upstream's constructor reseeds it.
class DdpCommHookTask : public Model {
 public:
  // The name by which create_model makes it.
  static constexpr const char* kName = "ddp_comm_hook_task";

  DdpCommHookTask();
  ~DdpCommHookTask() override;

  // Makes the model. Throws c10::ValueError for any option, as it has none.
  static std::shared_ptr<DdpCommHookTask> create(const ModelOptions& options);
  // See models::count_parameters.
  static int64_t count_parameters(const ModelOptions& options);
  // Empty.
  static std::vector<std::string> option_names() { return {}; }

  // x floating [40, 20], rank >= 0 -> p * x^(1 + rank), [40, 20].
  at::Tensor forward(const at::Tensor& x, int64_t rank);

  // inputs [40, 20], targets the rank as an int64 scalar -> the mean of forward(inputs, rank), the test's loss. Its
  // gradient with respect to p is x^(1 + rank) / 800.
  at::Tensor forward(const Batch& batch) override;

  // The batch that the test gives rank `rank`. The inputs are randn(40, 20) after manual_seed(2020), the same on every
  // rank.
  static Batch reference_batch(int64_t rank);

  ModelOptions options() const override;

 private:
  class Task;

  std::shared_ptr<Task> t0_;
};

}  // namespace narrowcast::models

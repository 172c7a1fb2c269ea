// The model of PyTorch's own test of its communication hooks
// (test/distributed/algorithms/ddp_comm_hooks/test_ddp_hooks.py).
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include <narrowcast/model.h>

namespace narrowcast::models {

// TestDdpCommHook: one parameter `t0.p`, float32 [40, 20]. It always starts with what randn(40, 20) gives after
// manual_seed(0), as upstream's does, but from a generator of its own: LibTorch's default generator is
// neither read nor changed (upstream's constructor reseeds it).
class DdpCommHookTask : public Model {
 public:
  // The name by which create_model makes it.
  static constexpr const char* kName = "ddp_comm_hook_task";

  DdpCommHookTask();
  ~DdpCommHookTask() override;

  // Makes the model. It has no options: any throws c10::ValueError.
  static std::shared_ptr<DdpCommHookTask> create(const ModelOptions& options);
  // See models::count_parameters.
  static int64_t count_parameters(const ModelOptions& options);
  // None.
  static std::vector<std::string> option_names() { return {}; }

  // x floating [40, 20], rank >= 0 -> p * x^(1 + rank), [40, 20].
  at::Tensor forward(const at::Tensor& x, int64_t rank);

  // inputs [40, 20], targets the rank as an int64 scalar: mean of the above, the test's loss. Its gradient
  // with respect to p is x^(1 + rank) / 800.
  at::Tensor forward(const Batch& batch) override;

  // The batch the test gives rank `rank`: inputs are randn(40, 20) after manual_seed(2020), on every rank alike.
  static Batch reference_batch(int64_t rank);

  ModelOptions options() const override;

 private:
  class Task;

  std::shared_ptr<Task> t0_;
};

}  // namespace narrowcast::models

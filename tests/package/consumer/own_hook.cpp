// A custom communication hook, made of narrowcast's operators: gradients are sent as bfloat16.
//   narrowcast-run --standalone --nproc_per_node=2 ./own_hook
#include <ATen/ATen.h>
#include <narrowcast/comm_hook.h>
#include <narrowcast/narrowcast.h>
#include <narrowcast/wire_format.h>
#include <torch/nn/modules/linear.h>
#include <torch/optim/sgd.h>

#include <cmath>
#include <cstdint>
#include <iostream>
#include <memory>
#include <string_view>
#include <utility>
#include <vector>

namespace {

constexpr int64_t kSteps = 200;

// Every rank sends its rounded bucket to all others. All ranks decode the same messages and add them in rank order.
class GatherBf16 : public narrowcast::hooks::CommHook {
 public:
  explicit GatherBf16(narrowcast::ProcessGroupPtr group) : group_(std::move(group)) {}

  std::string_view name() const override { return "gather_bf16"; }

  c10::intrusive_ptr<c10::ivalue::Future> runHook(c10d::GradBucket& bucket) override {
    const at::Tensor gradients = bucket.getBuffer();
    std::vector<at::Tensor> own = {narrowcast::encode(gradients, narrowcast::WireFormat::kBf16)};
    std::vector<std::vector<at::Tensor>> all(1);
    for (int64_t rank = 0; rank < group_->getSize(); ++rank) {
      all[0].push_back(at::empty_like(own[0]));
    }
    count_payload(own[0].numel() * (group_->getSize() - 1));
    // Nothing here waits for other ranks: the backward pass continues.
    return group_->allgather(all, own)->getFuture()->then(
        [gradients, all](c10::ivalue::Future& gathered) {
          gathered.value();  // Throws if a rank was lost.
          at::Tensor sum = at::zeros({gradients.numel()}, at::kFloat);
          for (const at::Tensor& bytes : all[0]) {
            sum += narrowcast::decode(bytes, narrowcast::WireFormat::kBf16, gradients.numel());
          }
          gradients.copy_(sum / static_cast<double>(all[0].size()));
          return c10::IValue(gradients);
        },
        c10::TensorType::get());
  }

 private:
  narrowcast::ProcessGroupPtr group_;
};

}  // namespace

int main() {
  const auto env = narrowcast::WorkerEnv::from_environment();
  const narrowcast::ProcessGroupScope scope(env);
  const auto& group = scope.group();

  torch::manual_seed(env.rank);
  narrowcast::DistributedDataParallel ddp(torch::nn::Linear(1, 1), group, narrowcast::DdpOptions());
  ddp.register_comm_hook(std::make_unique<GatherBf16>(group));
  torch::optim::SGD optimizer(ddp.module()->parameters(), /*lr=*/0.1);
  for (int64_t step = 0; step < kSteps; ++step) {
    const auto x = torch::randn({32, 1});
    const auto loss = (ddp.forward(x) - (3 * x + 1)).square().mean();
    optimizer.zero_grad();
    ddp.backward(loss);
    optimizer.step();
  }
  const auto weight = ddp.module()->weight.item<float>();
  if (env.rank == 0) {
    const int64_t bytes_of_step = 2 * static_cast<int64_t>(sizeof(float));  // Weight and bias.
    std::cout << "y = " << weight << " x + " << ddp.module()->bias.item<float>() << " by " << ddp.hook_name() << ", "
              << ddp.payload_bytes_sent() << " bytes sent; a ring all-reduce in float32 sends "
              << kSteps * narrowcast::hooks::ring_all_reduce_bytes(bytes_of_step, env.world_size) << '\n';
  }
  return std::abs(weight - 3) < 0.1 ? 0 : 1;
}

// The exchange of parameters between all ranks overlaps with the next forward pass, in which each layer waits for its
// own parameters.
//   narrowcast-run --standalone --nproc_per_node=2 ./overlapped_shards
#include <narrowcast/model.h>
#include <narrowcast/narrowcast.h>
#include <torch/nn/modules/activation.h>
#include <torch/nn/modules/container/sequential.h>
#include <torch/nn/modules/linear.h>
#include <torch/optim/adamw.h>

#include <iostream>
#include <memory>

namespace {

namespace models = narrowcast::models;

class Layers : public models::Model {
 public:
  Layers() : Model("Layers") {
    layers_ = torch::nn::Sequential(torch::nn::Linear(64, 256), torch::nn::Tanh(), torch::nn::Linear(256, 8));
    register_module("layers", layers_);
  }

  at::Tensor forward(const models::Batch& batch) override {
    at::Tensor x = batch.inputs;
    for (torch::nn::AnyModule& layer : *layers_) {
      announce(*layer.ptr());
      x = layer.forward(x);
    }
    return at::cross_entropy_loss(x, batch.targets);
  }

  bool announces_layers() const override { return true; }
  models::ModelOptions options() const override { return {}; }

 private:
  torch::nn::Sequential layers_{nullptr};
};

}  // namespace

int main() {
  const auto env = narrowcast::WorkerEnv::from_environment();
  const narrowcast::ProcessGroupScope scope(env);
  torch::manual_seed(0);  // Each run begins with the same parameters.
  const auto model = std::make_shared<Layers>();
  narrowcast::DistributedDataParallel ddp(model, scope.group(), narrowcast::DdpOptions().hook("int8"));
  torch::optim::AdamW adamw(model->parameters(), /*lr=*/0.003);
  narrowcast::ShardedOptimizer optimizer(adamw, ddp.reducer());
  model->set_layer_gate([&](const torch::nn::Module& layer) { optimizer.wait_for(layer.parameters()); });
  torch::manual_seed(env.rank);  // Each rank has different data.
  at::Tensor loss;
  for (int64_t step = 0; step < 300; ++step) {
    const at::Tensor images = torch::rand({64, 64});
    const at::Tensor brightest = images.view({64, 8, 8}).sum(-1).argmax(-1);  // The row with the largest sum.
    loss = ddp.forward(models::Batch{.inputs = images, .targets = brightest});
    optimizer.zero_grad();
    ddp.backward(loss);
    optimizer.start_step();  // Steps this rank's shard, and begins to send it.
  }
  optimizer.finish_step();  // Now all parameters are those of the last step.
  model->set_layer_gate({});
  const double difference = optimizer.largest_difference();
  if (env.rank == 0) {
    std::cout << "overlapped: loss " << loss.item<float>() << ", no parameter is further than " << difference
              << " from its master\n";
  }
}

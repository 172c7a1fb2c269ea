// Trains a model package that narrowcast_export wrote in Python: net.pt2 of docs/guide/export.md.
//   narrowcast-run --standalone --nproc_per_node=2 ./package net.pt2
#include <torch/optim/adamw.h>

#include <algorithm>
#include <iostream>

#include <narrowcast/models.h>
#include <narrowcast/narrowcast.h>

namespace {

// Images whose bright row of pixels is the digit.
narrowcast::models::Batch make_batch(int64_t size) {
  const auto digits = torch::randint(10, {size}, torch::kLong);
  auto images = torch::randint(50, {size, 28, 28}, torch::kByte);
  images.index_put_({torch::arange(size), digits}, torch::full({}, 250, torch::kByte));
  return {.inputs = images, .targets = digits};
}

}  // namespace

int main(int argc, char** argv) {
  if (argc != 2) {
    std::cerr << "usage: package PACKAGE.pt2\n";
    return 2;
  }
  const auto env = narrowcast::WorkerEnv::from_environment();
  const narrowcast::ProcessGroupScope scope(env);
  const auto model = narrowcast::models::load_package(argv[1]);  // The same weights on all ranks.
  model->compute_loss_in_backward();                             // Gradients are sent while others are computed.
  narrowcast::DistributedDataParallel ddp(model, scope.group(),
                                          narrowcast::DdpOptions().hook("int8").wire(
                                              {.node_size = 1}));  // Each rank counts as a node; else nothing is sent.
  torch::optim::AdamW adamw(model->parameters(), /*lr=*/0.01);
  const auto batch = std::min<int64_t>(32, model->trained_sizes().most);  // As the package was exported.
  torch::manual_seed(env.rank);  // Each rank has different data, and different dropouts.
  for (int64_t step = 0; step < 100; ++step) {
    adamw.zero_grad();
    ddp.backward(ddp.forward(make_batch(batch)));
    adamw.step();
  }
  model->eval();
  const auto held_out = model->evaluate(make_batch(std::min<int64_t>(500, model->evaluated_sizes().most)));
  if (env.rank == 0) {
    const auto buffers = model->buffers().size() - model->transient_buffers().size();
    std::cout << model->parameters().size() + buffers << " tensors to save, loss " << held_out.loss.item<float>()
              << ", accuracy " << held_out.accuracy.item<double>() << ", " << ddp.payload_bytes_sent()
              << " bytes sent\n";
  }
}

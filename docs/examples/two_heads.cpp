// A module with two heads, of which each step uses one, and a custom result type.
//
//   narrowcast-run --standalone --nproc_per_node=2 ./two_heads
#include <ATen/core/ivalue.h>
#include <narrowcast/narrowcast.h>
#include <torch/nn/modules/activation.h>
#include <torch/nn/modules/linear.h>
#include <torch/optim/adamw.h>

#include <cstdint>
#include <iostream>
#include <memory>
#include <vector>

namespace vision {

struct Output {
  at::Tensor features;
  at::Tensor prediction;
};

// With find_unused_parameters, DistributedDataParallel must know the tensors of a result. It finds this function by its
// name, in the namespace of the type. Standard containers and tuples of tensors need none.
void for_each_tensor(Output& output, narrowcast::TensorVisitor visit) {
  visit(output.features);
  visit(output.prediction);
}

class TwoHeadsImpl : public torch::nn::Module {
 public:
  Output forward(const at::Tensor& x, bool uses_first) {
    const at::Tensor features = trunk_(x).tanh();
    return {.features = features, .prediction = uses_first ? first_(features) : second_(features)};
  }

 private:
  torch::nn::Linear trunk_ = register_module("trunk", torch::nn::Linear(4, 32));
  torch::nn::Linear first_ = register_module("first", torch::nn::Linear(32, 1));
  torch::nn::Linear second_ = register_module("second", torch::nn::Linear(32, 1));
};
TORCH_MODULE(TwoHeads);

}  // namespace vision

namespace {

// The number of tensors that DistributedDataParallel finds in a result.
template <class Result>
int64_t count_tensors(Result result) {
  int64_t count = 0;
  narrowcast::visit_tensors(result, [&](at::Tensor& /*tensor*/) { ++count; });
  return count;
}

// The same for the result of a TorchScript module: here a list and a number.
int64_t count_script_tensors() {
  c10::IValue result = c10::ivalue::Tuple::create({std::vector<at::Tensor>{at::zeros(1), at::zeros(1)}, 3});
  int64_t count = 0;
  narrowcast::visit_ivalue_tensors(result, [&](at::Tensor& /*tensor*/) { ++count; });
  return count;
}

}  // namespace

int main() {
  const auto options = narrowcast::DdpOptions()
                           .hook("int8")
                           .wire({.node_size = 1})
                           .find_unused_parameters(true)   // One head gets no gradient in a step.
                           .gradient_as_bucket_view(true)  // Saves a copy of the gradients.
                           .first_bucket_mb(0.25);         // Sending starts early.
  options.validate();                                      // A wrong option is an error before ranks connect.
  const auto env = narrowcast::WorkerEnv::from_environment();
  const narrowcast::ProcessGroupScope scope(env);
  torch::manual_seed(0);  // Each run begins with the same parameters.
  narrowcast::DistributedDataParallel ddp(vision::TwoHeads(), scope.group(), options);
  torch::optim::AdamW optimizer(ddp.module()->parameters(), /*lr=*/3e-3);
  torch::manual_seed(env.rank);
  double losses[2] = {0, 0};
  for (int64_t step = 0; step < 600; ++step) {
    const bool uses_first = step % 2 == 0;  // The same on all ranks.
    const at::Tensor x = torch::randn({32, 4});
    const vision::Output output = ddp.forward(x, uses_first);
    const at::Tensor target = uses_first ? x.sum(1, /*keepdim=*/true) : x.narrow(1, 0, 1);
    const at::Tensor loss = (output.prediction - target).square().mean();
    ddp.zero_grad();  // With gradient_as_bucket_view, gradients cannot be zeroed in place.
    ddp.backward(loss);
    optimizer.step();
    losses[uses_first ? 0 : 1] = loss.item<double>();
  }
  if (env.rank == 0) {
    std::cout << "losses of the heads: " << losses[0] << " and " << losses[1] << "; buckets of at most "
              << options.first_bucket_bytes_cap() << " bytes, later ones " << options.bucket_bytes_cap() << "; "
              << count_tensors(vision::Output()) << " tensors in a result, " << count_script_tensors()
              << " of a script\n";
  }
  return losses[0] < 0.2 && losses[1] < 0.2 ? 0 : 1;
}

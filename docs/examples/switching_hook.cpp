// A custom hook with state, made of two other hooks: every 10th step averages in float32, the others send 4 bits and
// keep their rounding errors for the next step. A training that resumes from the hook's state has the same bits.
//
//   narrowcast-run --standalone --nproc_per_node=2 ./switching_hook
#include <narrowcast/narrowcast.h>
#include <torch/nn/modules/linear.h>
#include <torch/nn/utils/convert_parameters.h>
#include <torch/optim/sgd.h>

#include <cstdint>
#include <iostream>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

namespace {

namespace hooks = narrowcast::hooks;

// Names as a configuration has them. With the levels "two", ranks of a machine would sum in its memory, unrounded.
constexpr const char* kExactHook = "allreduce";
constexpr const char* kCoarseHook = "int4";
constexpr const char* kLevels = "one";

class SwitchingHook : public hooks::CommHook {
 public:
  // A collective: ranks create the inner hooks together.
  SwitchingHook(const narrowcast::ProcessGroupPtr& group, int64_t period, const hooks::WireOptions& wire)
      : period_(period),
        exact_(hooks::create_comm_hook(kExactHook, {.process_group = group})),
        coarse_(hooks::create_comm_hook(kCoarseHook, {.process_group = group, .wire = wire})) {}

  std::string_view name() const override { return "switching"; }

  c10::intrusive_ptr<c10::ivalue::Future> runHook(c10d::GradBucket& bucket) override {
    CommHook& inner = step_ % period_ == 0 ? *exact_ : *coarse_;
    step_ += bucket.isLast() ? 1 : 0;
    return run_inside(inner, bucket);  // Also counts its bytes for this hook.
  }

  hooks::HookState state(const std::vector<hooks::NamedParameter>& parameters) const override {
    hooks::HookState state = CommHook::state(parameters);
    state[kStep] = hooks::int_tensor(step_);
    for (const auto& [name, tensor] : coarse_->state(parameters)) {
      state[kCoarse + name] = tensor;  // The residuals.
    }
    return state;
  }

  void load_state(const hooks::FormerRanks& saved, const std::vector<hooks::NamedParameter>& parameters) override {
    CommHook::load_state(saved, parameters);
    step_ = hooks::int_of(saved.own(), kStep);
    coarse_->load_state(hooks::part_of(saved, kCoarse), parameters);
  }

  // With a sharded optimizer. The exact hook averages all elements, and so the shards.
  std::vector<int64_t> average_shards(std::optional<hooks::ShardRounding> rounding) override {
    return coarse_->average_shards(rounding);
  }
  void rescale_state(double factor) override { coarse_->rescale_state(factor); }
  bool keeps_replicas_equal() const override {
    return exact_->keeps_replicas_equal() && coarse_->keeps_replicas_equal();
  }
  std::vector<int64_t> groups() const override { return coarse_->groups(); }
  std::string nodes() const override { return coarse_->nodes(); }
  std::string decision() const override {
    return std::string(kCoarseHook) + ", and " + kExactHook + " every " + std::to_string(period_) + " steps";
  }
  std::optional<double> predicted_seconds(int64_t numel) const override { return coarse_->predicted_seconds(numel); }

 private:
  static constexpr const char* kStep = "step";
  inline static const std::string kCoarse = "coarse.";

  const int64_t period_;
  int64_t step_ = 0;
  const std::unique_ptr<CommHook> exact_;
  const std::unique_ptr<CommHook> coarse_;
};

using Ddp = narrowcast::DistributedDataParallel<torch::nn::Linear>;

void take_steps(Ddp& ddp, int64_t first, int64_t last) {
  torch::optim::SGD optimizer(ddp.module()->parameters(), /*lr=*/0.05);
  for (int64_t step = first; step < last; ++step) {
    torch::manual_seed(1000 * step + ddp.process_group()->getRank());  // Samples follow from step and rank.
    const at::Tensor x = torch::randn({32, 8});
    const at::Tensor loss = (ddp.forward(x) - x.cumsum(1)).square().mean();
    ddp.zero_grad();
    ddp.backward(loss);
    optimizer.step();
  }
}

}  // namespace

int main() {
  const hooks::WireOptions wire = {.error_feedback = true, .levels = hooks::parse_levels(kLevels)};
  hooks::check_comm_hook(kCoarseHook, wire);  // A wrong option is an error before ranks connect.
  const auto env = narrowcast::WorkerEnv::from_environment();
  const narrowcast::ProcessGroupScope scope(env);
  const auto& group = scope.group();

  torch::manual_seed(0);
  Ddp first(torch::nn::Linear(8, 8), group);
  first.register_comm_hook(std::make_unique<SwitchingHook>(group, 10, wire));
  take_steps(first, 0, 25);
  first.settle_buckets();
  const narrowcast::ReducerState state = first.state();

  Ddp resumed(torch::nn::Linear(std::dynamic_pointer_cast<torch::nn::LinearImpl>(first.module()->clone())), group);
  resumed.register_comm_hook(std::make_unique<SwitchingHook>(group, 10, wire));
  resumed.load_state({.buckets = state.buckets,
                      .reductions = state.reductions,
                      .hook = {.world_size = group->getSize(), .states = {state.hook.own()}, .first = {}}});
  take_steps(first, 25, 60);
  take_steps(resumed, 25, 60);

  const bool same = at::equal(torch::nn::utils::parameters_to_vector(first.module()->parameters()),
                              torch::nn::utils::parameters_to_vector(resumed.module()->parameters()));
  if (env.rank == 0) {
    std::cout << first.hook_name() << " (" << first.hook_decision() << ", nodes " << first.hook_nodes() << ") sent "
              << first.payload_bytes_sent() << " of " << first.payload_bytes_without_hook() << " bytes\n"
              << (same ? "the same bits" : "OTHER bits") << " after a resume\n";
  }
  return same && first.keeps_replicas_equal() && first.hook_groups().empty() ? 0 : 1;
}

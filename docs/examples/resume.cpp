// A training that resumes: killed at any time and started again, it ends with the same parameters, bit for bit.
//
//   narrowcast-run --standalone --nproc_per_node=2 ./resume FOLDER
//
// With a number behind FOLDER, the last rank kills itself before that step. The launcher then starts all ranks again.
//
//   narrowcast-run --standalone --nproc_per_node=2 --max_restarts=1 ./resume FOLDER 130
//
// FOLDER is shared by all ranks. Another number of ranks may resume from it.
#include <ATen/CPUGeneratorImpl.h>
#include <ATen/autocast_mode.h>
#include <narrowcast/narrowcast.h>
#include <torch/nn/modules/activation.h>
#include <torch/nn/modules/container/sequential.h>
#include <torch/nn/modules/linear.h>
#include <torch/optim/adamw.h>
#include <torch/serialize.h>

#include <csignal>
#include <cstdint>
#include <exception>
#include <filesystem>
#include <fstream>
#include <iostream>
#include <iterator>
#include <string>
#include <utility>
#include <vector>

namespace {

constexpr int64_t kSteps = 240;
constexpr int64_t kCheckpointEvery = 40;
constexpr double kMaxNorm = 1;  // of the averaged gradients
constexpr int64_t kBatch = 24;  // samples per step over all ranks; the number of ranks divides it

using Network = torch::nn::Sequential;
using TensorDict = c10::Dict<std::string, at::Tensor>;

struct Training {
  Network network;
  narrowcast::DistributedDataParallel<Network> ddp;
  torch::optim::AdamW optimizer;
  narrowcast::LearningRateSchedule schedule;
  narrowcast::GradScaler scaler;

  Training(Network net, const narrowcast::ProcessGroupPtr& group)
      : network(std::move(net)),
        ddp(network, group,
            narrowcast::DdpOptions().hook("int8").wire(
                {.error_feedback = true,
                 .node_size = 1,    // Each rank counts as a node; within a node nothing would be rounded.
                 .link_gbit = 1,    // If the link were measured, its figures would differ from run to run. With three
                 .link_us = 50})),  // ranks or more they select the algorithm, and with it the rounding.
        optimizer(network->parameters(), torch::optim::AdamWOptions(0)),
        schedule({.peak = 1e-2, .warmup_steps = 20}, kSteps),
        scaler(at::kCPU, {.growth_interval = 20}) {}

  const narrowcast::ProcessGroupPtr& group() const { return ddp.process_group(); }
};

void write_file(const std::filesystem::path& file, const c10::IValue& value) {
  const std::vector<char> bytes = torch::pickle_save(value);
  std::ofstream out(file, std::ios::binary);
  out.write(bytes.data(), static_cast<std::streamsize>(bytes.size()));
  out.close();
  TORCH_CHECK(out.good(), "cannot write ", file.string());
}

c10::IValue read_file(const std::filesystem::path& file) {
  std::ifstream in(file, std::ios::binary);
  TORCH_CHECK(in.good(), "cannot read ", file.string());
  return torch::pickle_load({std::istreambuf_iterator<char>(in), {}});
}

TensorDict as_dict(const narrowcast::hooks::HookState& state) {
  TensorDict dict;
  for (const auto& [name, tensor] : state) {
    dict.insert(name, tensor);
  }
  return dict;
}

narrowcast::hooks::HookState read_state(const std::filesystem::path& file) {
  narrowcast::hooks::HookState state;
  for (const auto& entry : read_file(file).to<TensorDict>()) {
    state[entry.key()] = entry.value();
  }
  return state;
}

std::string rank_file(int64_t rank) { return "rank-" + std::to_string(rank) + ".pkl"; }

// A collective. Rank 0 writes the common state, and each rank its state of the hook. The file `latest` names a
// checkpoint once it is complete. If a process is killed before that, the former checkpoint stays in use.
void save(Training& training, const std::filesystem::path& folder, int64_t step) {
  if (training.ddp.buckets_are_settled()) {
    training.ddp.sync_buffers();
  } else {
    training.ddp.settle_buckets();
  }
  const narrowcast::ReducerState reducer = training.ddp.state();
  const int rank = training.group()->getRank();
  const std::filesystem::path checkpoint = folder / std::to_string(step);
  std::filesystem::create_directories(checkpoint);
  write_file(checkpoint / rank_file(rank), as_dict(reducer.hook.own()));
  if (rank == 0) {
    torch::save(training.network, (checkpoint / "model.pt").string());
    torch::save(training.optimizer, (checkpoint / "optimizer.pt").string());
    write_file(checkpoint / "scaler.pkl", as_dict(training.scaler.state()));
    write_file(checkpoint / "buckets.pkl", reducer.buckets);
    write_file(checkpoint / "reductions.pkl", reducer.reductions);
    write_file(checkpoint / "world_size.pkl", int64_t{training.group()->getSize()});
  }
  narrowcast::barrier(training.group(), "waiting until all ranks have written the checkpoint");
  if (rank == 0) {
    write_file(folder / "latest.new", step);
    std::filesystem::rename(folder / "latest.new", folder / "latest");
  }
}

// The step of the newest checkpoint, or 0 without one.
int64_t newest_checkpoint(const std::filesystem::path& folder) {
  return std::filesystem::exists(folder / "latest") ? read_file(folder / "latest").toInt() : 0;
}

// Loads everything except the model's parameters, which are loaded before DistributedDataParallel is created.
void load(Training& training, const std::filesystem::path& checkpoint) {
  torch::load(training.optimizer, (checkpoint / "optimizer.pt").string());
  training.scaler.load_state(read_state(checkpoint / "scaler.pkl"));

  narrowcast::ReducerState saved;
  saved.buckets = read_file(checkpoint / "buckets.pkl").to<narrowcast::BucketNames>();
  saved.reductions = read_file(checkpoint / "reductions.pkl").toInt();
  saved.hook.world_size = read_file(checkpoint / "world_size.pkl").toInt();
  // Rank r of W ranks loads the states of the former ranks r, r + W, r + 2 W, ...: see FormerRanks.
  for (int64_t former = training.group()->getRank(); former < saved.hook.world_size;
       former += training.group()->getSize()) {
    saved.hook.states.push_back(read_state(checkpoint / rank_file(former)));
  }
  if (saved.hook.states.empty()) {
    saved.hook.first = read_state(checkpoint / rank_file(0));
  }
  training.ddp.load_state(saved);
}

// Matrix products are in float16 from here to the end of the scope.
class Float16Scope {
 public:
  Float16Scope() {
    at::autocast::set_autocast_dtype(at::kCPU, at::kHalf);
    at::autocast::set_autocast_enabled(at::kCPU, true);
  }
  ~Float16Scope() {
    at::autocast::clear_cache();
    at::autocast::set_autocast_enabled(at::kCPU, false);
  }
  Float16Scope(const Float16Scope&) = delete;
  Float16Scope& operator=(const Float16Scope&) = delete;
};

// The loss on this rank's part of the step's batch. The batch follows from the step alone, so a training that resumes
// needs no position in the data.
at::Tensor loss_at(Training& training, int64_t step) {
  auto generator = at::detail::createCPUGenerator(static_cast<uint64_t>(step));
  const at::Tensor all = torch::randn({kBatch, 8}, generator);
  const at::Tensor inputs = all.chunk(training.group()->getSize())[training.group()->getRank()];
  const at::Tensor targets = inputs.mean(1, /*keepdim=*/true).sin();
  const Float16Scope float16;
  return (training.ddp.forward(inputs).to(at::kFloat) - targets).square().mean();
}

// Clips the gradients, whose 2-norm is `norm`. torch::nn::utils::clip_grad_norm_ would compute the norm once more.
void clip(const std::vector<at::Tensor>& parameters, double norm) {
  if (norm > kMaxNorm) {
    for (const at::Tensor& parameter : parameters) {
      parameter.grad().mul_(kMaxNorm / norm);
    }
  }
}

// Returns whether the step was taken. It is skipped for gradients that are not finite.
bool take_step(Training& training, int64_t step) {
  training.ddp.zero_grad();
  training.ddp.backward(training.scaler.scale(loss_at(training, step)));
  const std::vector<at::Tensor> parameters = training.network->parameters();
  const auto [are_finite, norm] = training.scaler.unscale_and_measure(parameters);
  if (training.scaler.change() != 1) {
    training.ddp.rescale_hook_state(training.scaler.change());  // The hook's residuals belong to scaled gradients.
  }
  if (are_finite) {
    clip(parameters, norm);
    narrowcast::set_learning_rate(training.optimizer, training.schedule.at(step));
    training.optimizer.step();
  }
  return are_finite;
}

void train(const narrowcast::ProcessGroupPtr& group, const std::filesystem::path& folder, int64_t kill_at) {
  TORCH_CHECK_VALUE(kBatch % group->getSize() == 0, "the number of ranks must divide ", kBatch, ", but is ",
                    group->getSize());
  torch::manual_seed(0);
  Network network(torch::nn::Linear(8, 64), torch::nn::Tanh(), torch::nn::Linear(64, 64), torch::nn::Tanh(),
                  torch::nn::Linear(64, 1));
  const int64_t first = newest_checkpoint(folder);
  const std::filesystem::path checkpoint = folder / std::to_string(first);
  if (first > 0) {
    // Load before DistributedDataParallel is created: torch::load replaces the parameters' gradient accumulators,
    // through which DistributedDataParallel notices that a gradient is ready.
    torch::load(network, (checkpoint / "model.pt").string());
  }
  Training training(network, group);
  if (first > 0) {
    load(training, checkpoint);
  }
  const int64_t last_rank = group->getSize() - 1;
  int64_t skipped = 0;
  for (int64_t step = first; step < kSteps; ++step) {
    if (step == kill_at && first == 0 && group->getRank() == last_rank) {
      std::raise(SIGKILL);
    }
    skipped += take_step(training, step) ? 0 : 1;
    if ((step + 1) % kCheckpointEvery == 0) {
      save(training, folder, step + 1);
    }
  }
  const at::Tensor loss = loss_at(training, kSteps);
  if (group->getRank() == 0) {
    std::cout << "steps " << first << " to " << kSteps << ", " << skipped << " skipped, scale "
              << training.scaler.get_scale() << ", loss " << loss.item<float>() << '\n';
  }
}

}  // namespace

int main(int argc, char** argv) {
  if (argc < 2 || argc > 3) {
    std::cerr << "usage: resume FOLDER [KILL_AT]\n";
    return 2;
  }
  try {
    const auto env = narrowcast::WorkerEnv::from_environment();
    const narrowcast::ProcessGroupScope scope(env);
    scope.run([&] { train(scope.group(), argv[1], argc == 3 ? std::stoll(argv[2]) : -1); });
  } catch (const c10::Error& error) {
    std::cerr << error.what_without_backtrace() << '\n';
    return 1;
  } catch (const std::exception& error) {
    std::cerr << error.what() << '\n';
    return 1;
  }
}

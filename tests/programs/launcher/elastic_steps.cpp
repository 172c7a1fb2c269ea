// A program whose steps are an ElasticGroup's, and which fails on demand:
//
//   elastic_steps FOLDER STEPS [FAULT:RANK:STEP...]
//
// FAULT is "kill" (before the step), "die" (by an error, before the step), "late" (kill after optimizer.step()), "hang"
// (stop) or, of step 0, "another" (another state than other ranks'). Each happens once, in whichever process reaches it
// first. Each rank writes its result to FOLDER/rank-RANK.
#include <ATen/CPUGeneratorImpl.h>
#include <fcntl.h>
#include <torch/nn/modules/container/sequential.h>
#include <torch/nn/modules/linear.h>
#include <torch/optim/adamw.h>
#include <torch/serialize.h>
#include <unistd.h>

#include <csignal>
#include <cstdint>
#include <filesystem>
#include <iostream>
#include <string>
#include <vector>

#include <narrowcast/ddp.h>
#include <narrowcast/elastic_group.h>

namespace {

class Faults {
 public:
  Faults(std::filesystem::path folder, std::vector<std::string> faults)
      : folder_(std::move(folder)), faults_(std::move(faults)) {}

  // Whether this fault is to happen now. A file remembers it.
  bool begins(const std::string& kind, int64_t rank, int64_t step) const {
    const std::string fault = kind + ":" + std::to_string(rank) + ":" + std::to_string(step);
    for (size_t number = 0; number < faults_.size(); ++number) {
      const std::string mark = folder_ / ("fault-" + std::to_string(number));
      if (faults_[number] == fault && close(open(mark.c_str(), O_CREAT | O_EXCL, 0600)) == 0) {
        return true;
      }
    }
    return false;
  }

 private:
  std::filesystem::path folder_;
  std::vector<std::string> faults_;
};

void train(const std::filesystem::path& folder, int64_t last, const Faults& faults) {
  const auto env = narrowcast::WorkerEnv::from_environment();
  at::set_num_threads(1);
  torch::manual_seed(env.rank + 100 * env.restart_count);
  torch::nn::Sequential net(torch::nn::Linear(8, 300), torch::nn::Linear(300, 1));
  torch::optim::AdamW optimizer(net->parameters(), torch::optim::AdamWOptions(0.01));
  at::Tensor steps = at::zeros({}, at::kLong);
  narrowcast::ElasticState state;
  state.add("net", *net);
  state.add("optimizer", optimizer);
  state.add("steps", steps);
  const at::Tensor more = at::zeros({1});
  if (faults.begins("another", env.rank, 0)) state.add("more", more);
  narrowcast::ElasticOptions options;
  options.group.silence = std::chrono::seconds(3);
  options.on_recovery = [&](const narrowcast::ElasticRecovery& recovery) {
    std::cout << "rank " << env.rank << " goes on with step " << recovery.step << std::endl;
  };
  narrowcast::ElasticGroup elastic(env, options);
  elastic.run(
      state,
      [&](const narrowcast::ProcessGroupPtr& group) {
        return narrowcast::DistributedDataParallel(net, group,
                                                   narrowcast::DdpOptions().hook("int8").bucket_cap_mb(0.001).wire(
                                                       {.node_size = 1, .link_gbit = 1, .link_us = 100}));
      },
      [&](auto& ddp, int64_t step) {
        if (step == 300) std::cout << "rank " << env.rank << " takes step 300" << std::endl;
        if (faults.begins("kill", env.rank, step)) std::raise(SIGKILL);
        if (faults.begins("hang", env.rank, step)) std::raise(SIGSTOP);
        TORCH_CHECK_VALUE(!faults.begins("die", env.rank, step), "no data for step ", step);
        auto generator = at::detail::createCPUGenerator(static_cast<uint64_t>(100 * step + env.rank));
        const at::Tensor inputs = at::randn({8, 8}, generator);
        const at::Tensor loss = (ddp.forward(inputs) - inputs.sum(1, true)).square().mean();
        optimizer.zero_grad();
        ddp.backward(loss);
        optimizer.step();
        steps += 1;
        if (faults.begins("late", env.rank, step)) std::raise(SIGKILL);
        return step + 1 < last;
      });
  std::cout << "rank " << env.rank << " ends after " << steps.item<int64_t>() << " steps, " << elastic.recoveries()
            << " recoveries" << std::endl;
  torch::save(net->parameters(), folder / ("rank-" + std::to_string(env.rank)));
}

}  // namespace

int main(int argc, char** argv) {
  const std::vector<std::string> arguments(argv + 1, argv + argc);
  try {
    train(arguments.at(0), std::stoll(arguments.at(1)),
          Faults(arguments.at(0), {arguments.begin() + 2, arguments.end()}));
  } catch (const c10::Error& error) {
    std::cerr << "elastic_steps: " << error.what_without_backtrace() << std::endl;
    return 1;
  }
}

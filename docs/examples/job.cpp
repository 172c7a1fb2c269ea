// A program that is ready for a cluster: ranks compare their settings, add up their counts, name the step in which they
// wait for others, report errors with an exit code each, and train tensors that belong to no module.
//
//   narrowcast-run --standalone --nproc_per_node=2 ./job 32      # samples per step and rank
#include <narrowcast/gradient_reducer.h>
#include <narrowcast/module_state.h>
#include <narrowcast/narrowcast.h>
#include <torch/optim/sgd.h>
#include <unistd.h>

#include <array>
#include <cstdint>
#include <exception>
#include <fstream>
#include <iostream>
#include <stdexcept>
#include <string>
#include <unordered_set>
#include <vector>

namespace {

constexpr int64_t kSteps = 150;

// The exit codes of narrowcast-train.
enum ExitCode { kDone = 0, kFailed = 1, kWrongUse = 2, kPeerLost = 3, kCorruptInput = 4, kCannotWrite = 6 };

// y = a x + b. DistributedDataParallel wraps modules; GradientReducer takes any tensors.
struct Line {
  at::Tensor a = torch::zeros({1}, at::requires_grad());
  at::Tensor b = torch::zeros({1}, at::requires_grad());

  at::Tensor forward(const at::Tensor& x) const { return a * x + b; }
};

// All ranks get the error of settings that differ, before any of them trains.
void compare_settings(const narrowcast::ProcessGroupPtr& group, int64_t batch_size) {
  narrowcast::check_equal_on_all_ranks(
      group, {{"version", narrowcast::version()}, {"batch_size", std::to_string(batch_size)}});
}

std::string host_name() {
  std::array<char, 256> name{};
  TORCH_CHECK(gethostname(name.data(), name.size() - 1) == 0, "gethostname failed");
  return name.data();
}

void print_machines(const narrowcast::ProcessGroupPtr& group, const narrowcast::WorkerEnv& env) {
  const std::vector<std::string> hosts = narrowcast::all_gather_text(group, host_name());
  if (env.rank == 0) {
    std::cout << hosts.size() << " ranks on " << std::unordered_set<std::string>(hosts.begin(), hosts.end()).size()
              << " machines" << (env.on_one_node() ? " (one node)" : "") << ", restarted " << env.restart_count
              << " times\n";
  }
}

// Work of this rank alone. If it takes too long, the errors of the ranks that wait contain this step.
at::Tensor prepare_data(int64_t rank, int64_t samples) {
  const narrowcast::StepScope step(rank, "preparing the data");
  if (rank == 0) {
    std::cout << "rank 0 " << narrowcast::describe_current_step(rank) << '\n';
  }
  torch::manual_seed(rank);  // Each rank has different data.
  return torch::randn({samples});
}

void train(const Line& line, const at::Tensor& data, const narrowcast::ProcessGroupPtr& group) {
  const narrowcast::ModuleState state{.parameters = {{"a", line.a}, {"b", line.b}}, .buffers = {}};
  narrowcast::check_trainable(state, group);
  narrowcast::GradientReducer reducer(state, group, narrowcast::DdpOptions().hook("allreduce"));
  torch::optim::SGD optimizer(narrowcast::tensors_of(state.trainable()), /*lr=*/0.1);
  for (const at::Tensor& x : data.chunk(kSteps)) {
    reducer.before_forward();
    at::Tensor y = line.forward(x);
    if (reducer.wants_outputs()) {  // With find_unused_parameters.
      y = reducer.after_forward({y})[0];
    } else {
      reducer.after_forward({});
    }
    reducer.zero_grad();
    reducer.backward((y - (3 * x + 1)).square().mean());
    optimizer.step();
  }
}

// A collective of c10d. Its errors become c10::DistBackendErrors that name this rank and the step, and other ranks that
// time out print that this rank was in it.
void broadcast(const at::Tensor& tensor, const narrowcast::ProcessGroupPtr& group) {
  narrowcast::with_network_errors(group->getRank(), "broadcasting the result", [&] {
    std::vector<at::Tensor> tensors = {tensor};
    group->broadcast(tensors)->wait();
  });
}

// Waits for a collective that began earlier, with the same errors.
void finish(const c10::intrusive_ptr<c10d::Work>& work, int64_t rank, const std::string& step) {
  try {
    work->wait();
  } catch (...) {
    narrowcast::rethrow_network_error(std::current_exception(), rank, step);
  }
}

void run(const narrowcast::WorkerEnv& env, int64_t batch_size) {
  const narrowcast::ProcessGroupScope scope(env);
  const auto& group = scope.group();
  scope.run([&] {
    compare_settings(group, batch_size);
    print_machines(group, env);
    const at::Tensor data = prepare_data(env.rank, kSteps * batch_size);
    std::vector<at::Tensor> largest = {data.max()};
    const auto work = group->allreduce(largest, {.reduceOp = c10d::ReduceOp::MAX});  // Is sent during the training.
    const Line line;
    train(line, data, group);
    finish(work, env.rank, "finding the largest sample");
    const double samples = narrowcast::all_reduce_sum(group, {static_cast<double>(data.numel())})[0];
    const torch::NoGradGuard no_grad;
    broadcast(line.a, group);
    if (env.rank == 0) {
      std::cout << "y = " << line.a.item<float>() << " x + " << line.b.item<float>() << " from " << samples
                << " samples up to " << largest[0].item<float>() << '\n';
    }
  });
}

// A failing worker writes the reason to a file of JSON. The launcher prints it with the rank that failed first.
void write_error_file(const std::string& why) {
  const std::string file = narrowcast::worker_error_file();  // Empty without a launcher.
  if (file.empty()) {
    return;
  }
  std::string escaped;
  for (const char letter : why) {
    escaped += letter == '"' || letter == '\\' ? "\\" : "";
    escaped += letter == '\n' ? ' ' : letter;
  }
  std::ofstream(file) << R"({"message": ")" << escaped << R"("})";
}

ExitCode report(int64_t rank, const std::string& why, ExitCode code) {
  std::cerr << "job: rank " << rank << ": " << why << '\n';
  write_error_file(why);
  return code;
}

}  // namespace

int main(int argc, char** argv) {
  int64_t rank = 0;
  try {
    const narrowcast::EnvironmentVariables variables = narrowcast::process_environment();
    const auto env = narrowcast::WorkerEnv::from_variables(variables);
    rank = env.rank;
    if (const std::string name = narrowcast::text_or_empty(variables, "JOB_NAME"); rank == 0 && !name.empty()) {
      const bool is_bold = !narrowcast::SessionEnv::from_variables(variables).no_color && isatty(STDOUT_FILENO) == 1;
      std::cout << (is_bold ? "\x1b[1m" : "") << name << (is_bold ? "\x1b[0m" : "") << '\n';
    }
    TORCH_CHECK_VALUE(argc == 2, "usage: job BATCH_SIZE");
    const int64_t batch_size = std::stoll(argv[1]);
    TORCH_CHECK_VALUE(batch_size >= 1, "BATCH_SIZE must be at least 1, but is ", batch_size);
    run(env, batch_size);
    return kDone;
  } catch (const std::invalid_argument& error) {
    return report(rank, "BATCH_SIZE is not a number", kWrongUse);
  } catch (const c10::ValueError& error) {
    return report(rank, error.what_without_backtrace(), kWrongUse);
  } catch (const c10::DistBackendError& error) {
    const char* const hint = narrowcast::is_time_out(error) ? " (a time-out: a rank hangs or computes for long)" : "";
    return report(rank, error.what_without_backtrace() + std::string(hint), kPeerLost);
  } catch (const narrowcast::CorruptInputError& error) {
    return report(rank, error.what_without_backtrace(), kCorruptInput);
  } catch (const narrowcast::OutputError& error) {
    return report(rank, error.what_without_backtrace(), kCannotWrite);
  } catch (const c10::Error& error) {
    return report(rank, error.what_without_backtrace(), kFailed);
  } catch (const std::exception& error) {
    return report(rank, error.what(), kFailed);
  }
}

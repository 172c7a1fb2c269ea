// What the wire formats cost in accuracy, as docs/numerics.md explains:
//   1. squared error of one encoding, and of a mean over the ranks, on Gaussian and heavy-tailed numbers, and the bias
//      of both ways of rounding
//   2. the same of means of real gradients of char_gpt, per bucket and per tensor, against the targets
//   3. with --seeds: what each format does to the validation loss of that training, seed by seed
// Exit code 1 if a target is missed.
#include <ATen/ATen.h>
#include <ATen/Parallel.h>
#include <absl/flags/flag.h>

#include <cmath>
#include <cstdio>
#include <map>
#include <string>
#include <vector>

#include "ops/wire_format.h"
#include "tests/bench/numerics/simulated_training.h"
#include "trainer/program/command_line.h"

ABSL_FLAG(std::vector<std::string>, data, {}, "text files to train on; without them the project's own text");
ABSL_FLAG(int64_t, ranks, 4, "ranks that are simulated");
ABSL_FLAG(int64_t, steps, 700, "optimizer steps of each training");
ABSL_FLAG(int64_t, batch_size, 32, "sequences of 64 characters per step, over all ranks");
ABSL_FLAG(double, learning_rate, 3e-3, "peak learning rate");
ABSL_FLAG(int64_t, every, 5, "steps between those whose gradients are measured");
ABSL_FLAG(int64_t, seeds, 0, "trainings per format for the validation losses; 0: none");

namespace narrowcast::bench {
namespace {

// |x - reference|^2 / |reference|^2.
double normalized_error(const at::Tensor& x, const at::Tensor& reference) {
  const at::Tensor exact = reference.to(at::kDouble);
  return (x.to(at::kDouble) - exact).square().sum().item<double>() / exact.square().sum().item<double>();
}

SimulationOptions simulation(int64_t seed, std::optional<WireFormat> format) {
  return {absl::GetFlag(FLAGS_data),
          absl::GetFlag(FLAGS_ranks),
          absl::GetFlag(FLAGS_steps),
          absl::GetFlag(FLAGS_batch_size),
          absl::GetFlag(FLAGS_learning_rate),
          seed,
          format};
}

// Student's t with 3 degrees of freedom: infinite fourth moment.
at::Tensor heavy_tailed(int64_t numel) { return at::randn({numel}) / (at::randn({3, numel}).square().mean(0)).sqrt(); }

// The mean error of an element over many encodings, in units of its standard error, as root mean squares over the
// elements: about 1 without bias.
double bias_of_random_rounding(WireFormat format, const at::Tensor& x) {
  constexpr int64_t kTimes = 400;
  at::Tensor sum = at::zeros({x.numel()}, at::kDouble);
  at::Tensor squares = at::zeros({x.numel()}, at::kDouble);
  for (int64_t step = 0; step < kTimes; ++step) {
    const at::Tensor error =
        decode(encode(x, format, {.seed = 1, .step = step}), format, x.numel()).to(at::kDouble) - x.to(at::kDouble);
    sum += error;
    squares += error.square();
  }
  const double variance = (squares - sum.square() / kTimes).sum().item<double>();  // Of the sums.
  return variance > 0 ? std::sqrt(sum.square().sum().item<double>() / variance) : 0;
}

void print_synthetic() {
  constexpr int64_t kNumel = 1 << 18;
  at::manual_seed(1);
  std::printf("squared error on random numbers: one encoding, mean of %d ranks; bias of random rounding (1: none)\n",
              static_cast<int>(absl::GetFlag(FLAGS_ranks)));
  std::printf("%-14s %10s %10s %10s %10s %8s\n", "format", "Gaussian", "mean", "heavy", "mean", "bias");
  for (const WireFormat format : kWireFormats) {
    std::printf("%-14s", std::string(to_string(format)).c_str());
    for (const bool heavy : {false, true}) {
      std::vector<at::Tensor> ranks;
      for (int64_t rank = 0; rank < absl::GetFlag(FLAGS_ranks); ++rank) {
        ranks.push_back(heavy ? heavy_tailed(kNumel) : at::randn({kNumel}));
      }
      const at::Tensor once = decode(encode(ranks[0], format), format, kNumel);
      std::printf(" %10.2e %10.2e", normalized_error(once, ranks[0]),
                  normalized_error(mean_of(ranks, format), mean_of(ranks, std::nullopt)));
    }
    std::printf(" %8.2f\n", bias_of_random_rounding(format, at::randn({4096})));
  }
}

// Of one format's means in a training.
struct Errors {
  double sum = 0;
  int64_t count = 0;
  double worst = 0;       // Of a step after the first kSettled.
  double tensor_sum = 0;  // Of the worst tensor of each step.
  double worst_tensor = 0;
};
constexpr int64_t kSettled = 20;

double worst_tensor_error(const at::Tensor& mean, const at::Tensor& exact, const std::vector<int64_t>& sizes) {
  double worst = 0;
  int64_t begin = 0;
  for (const int64_t size : sizes) {
    const double error = normalized_error(mean.narrow(0, begin, size), exact.narrow(0, begin, size));
    worst = std::isfinite(error) ? std::max(worst, error) : worst;  // A gradient may be zero.
    begin += size;
  }
  return worst;
}

void measure(const StepGradients& gradients, std::map<WireFormat, Errors>& errors) {
  if (gradients.step % absl::GetFlag(FLAGS_every) != 0) return;
  const at::Tensor exact = mean_of(gradients.by_rank, std::nullopt);
  for (const WireFormat format : kWireFormats) {
    const at::Tensor mean = mean_of(gradients.by_rank, format);
    Errors& of_format = errors[format];
    const double error = normalized_error(mean, exact);
    const double of_tensor = worst_tensor_error(mean, exact, gradients.sizes);
    of_format.sum += error;
    of_format.tensor_sum += of_tensor;
    ++of_format.count;
    if (gradients.step > kSettled) {
      of_format.worst = std::max(of_format.worst, error);
      of_format.worst_tensor = std::max(of_format.worst_tensor, of_tensor);
    }
  }
}

// Mean over the run, worst step, and for int4_b32 the mean over the run of the worst tensor.
struct Target {
  WireFormat format;
  double mean;
  double worst;
  double tensor = INFINITY;
};
constexpr Target kTargets[] = {{WireFormat::kInt8B32, 1e-4, 2e-4},    {WireFormat::kInt8B128, 1.6e-4, 3.5e-4},
                               {WireFormat::kInt8B256, 2.5e-4, 5e-4}, {WireFormat::kFp8E4M3B32, 1e-3, 1.5e-3},
                               {WireFormat::kInt6B32, 1.1e-3, 2e-3},  {WireFormat::kInt4B32, 0.02, 0.035, 0.05}};

bool print_real(double loss, const std::map<WireFormat, Errors>& errors) {
  std::printf("\nsquared error of means of real gradients (char_gpt, %d steps, validation loss %.4f)\n",
              static_cast<int>(absl::GetFlag(FLAGS_steps)), loss);
  std::printf("%-14s %10s %10s %14s %14s\n", "format", "mean", "worst", "tensor, mean", "tensor, worst");
  bool met = true;
  for (const auto& [format, e] : errors) {
    const auto count = static_cast<double>(e.count);
    std::printf("%-14s %10.2e %10.2e %14.2e %14.2e", std::string(to_string(format)).c_str(), e.sum / count, e.worst,
                e.tensor_sum / count, e.worst_tensor);
    for (const Target& target : kTargets) {
      if (target.format != format) continue;
      const bool holds =
          e.sum / count <= target.mean && e.worst <= target.worst && e.tensor_sum / count <= target.tensor;
      std::printf("  %s (targets %.1e, %.1e)", holds ? "holds" : "MISSED", target.mean, target.worst);
      met = met && holds;
    }
    std::printf("\n");
  }
  return met;
}

// Paired differences of the validation loss; at most 1e-3 from 6 bits up, 4e-3 at 4 bits.
bool print_losses(int64_t seeds) {
  std::printf("\nvalidation loss less that of float32, seed by seed (x 1e-3)\n%-14s %8s %8s\n", "format", "mean",
              "s.e.");
  std::vector<double> plain;
  for (int64_t seed = 0; seed < seeds; ++seed) plain.push_back(simulate_training(simulation(seed, std::nullopt), {}));
  bool met = true;
  for (const WireFormat format : kWireFormats) {
    double sum = 0;
    double squares = 0;
    for (int64_t seed = 0; seed < seeds; ++seed) {
      const double gap = simulate_training(simulation(seed, format), {}) - plain[seed];
      sum += gap;
      squares += gap * gap;
    }
    const auto count = static_cast<double>(seeds);
    const double mean = sum / count;
    const double deviation = std::sqrt(std::max(0.0, squares / count - mean * mean) / std::max(1.0, count - 1));
    const double target = format == WireFormat::kInt4B32 ? 4e-3 : 1e-3;
    std::printf("%-14s %8.2f %8.2f  %s (target %.0f)\n", std::string(to_string(format)).c_str(), mean * 1e3,
                deviation * 1e3, mean <= target ? "holds" : "MISSED", target * 1e3);
    std::fflush(stdout);
    met = met && mean <= target;
  }
  return met;
}

int run() {
  at::set_num_threads(1);  // The figures are the same for any number; small tensors are slower with more.
  print_synthetic();
  std::fflush(stdout);
  std::map<WireFormat, Errors> errors;
  const double loss =
      simulate_training(simulation(0, std::nullopt), [&](const StepGradients& step) { measure(step, errors); });
  bool met = print_real(loss, errors);
  const int64_t seeds = absl::GetFlag(FLAGS_seeds);
  if (seeds > 0) met = print_losses(seeds) && met;
  return met ? 0 : 1;
}

program::Description description() {
  program::Description description;
  description.name = "narrowcast_numerics_bench";
  description.version = "0";
  description.summary = "Measures what the wire formats cost in accuracy and checks the targets.";
  description.usage = "narrowcast_numerics_bench [flags]";
  description.groups = {{"Workload", {"data", "ranks", "steps", "batch_size", "learning_rate", "every", "seeds"}}};
  description.examples = {{"with five paired trainings of each format", "narrowcast_numerics_bench --seeds=5"}};
  description.exit_codes = {{0, "every target was met"}, {1, "a target was missed"}};
  return description;
}

}  // namespace
}  // namespace narrowcast::bench

int main(int argc, char** argv) {
  return narrowcast::program::run_main(narrowcast::bench::description(), argc, argv,
                                       [](const auto&) { return narrowcast::bench::run(); });
}

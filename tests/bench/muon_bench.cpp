// The time of Muon's step beside the passes of a training, for a char_gpt of 10.7 million parameters on the CPU.
//
// Passes over --sequences sequences of 256 tokens and optimizer steps take turns. The time of a pass is proportional to
// its tokens, while a step's does not depend on them, so that the share of the optimizer follows for batches of any
// size. Shares are medians of the rounds' shares. Exit code 1 if the target is missed.
#include <ATen/ATen.h>
#include <ATen/Parallel.h>
#include <absl/flags/flag.h>

#include <chrono>
#include <cstdio>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include <narrowcast/char_gpt.h>
#include <narrowcast/muon.h>
#include "ops/common/median.h"
#include "tests/bench/machine_watch/machine_watch.h"
#include "trainer/base/program/command_line.h"
#include "trainer/train/optimization/optimizer.h"

ABSL_FLAG(int64_t, rounds, 7, "measured turns of each operation, after one to warm up");
ABSL_FLAG(int64_t, threads, 1, "threads of each operation");
ABSL_FLAG(int64_t, sequences, 8, "sequences of 256 tokens in a measured pass");

namespace narrowcast {
namespace {

using Clock = std::chrono::steady_clock;

constexpr int64_t kContext = 256;
constexpr int64_t kVocabulary = 65;
constexpr int64_t kBatches[] = {128, 2048, 16384};  // In tokens. The last one is 64 sequences of 256.
constexpr double kLargestShare = 0.1;               // of the last batch's step

double seconds_of(const std::function<void()>& run) {
  const auto begin = Clock::now();
  run();
  return std::chrono::duration<double>(Clock::now() - begin).count();
}

// A model with its optimizer and gradients.
struct Trained {
  explicit Trained(training::OptimizerKind kind)
      : model(models::CharGptOptions{
            .layers = 6, .heads = 6, .width = 384, .context = kContext, .vocabulary_size = kVocabulary}),
        optimizer(training::make_optimizer(model, {.kind = kind, .momentum = training::usual_momentum(kind)})) {
    training::set_learning_rates(*optimizer, 1e-6, 1e-6);
  }
  void pass(int64_t sequences) {
    const at::Tensor tokens = at::randint(kVocabulary, {sequences, kContext + 1}, at::kLong);
    model.forward({.inputs = tokens.narrow(1, 0, kContext), .targets = tokens.narrow(1, 1, kContext)}).backward();
  }

  models::CharGpt model;
  std::unique_ptr<torch::optim::Optimizer> optimizer;
};

struct Round {
  double pass_of_a_token;
  double adamw;
  double muon;
};

std::vector<double> of_rounds(const std::vector<Round>& rounds, const std::function<double(const Round&)>& value) {
  std::vector<double> values;
  for (const Round& round : rounds) values.push_back(value(round));
  return values;
}

int run() {
  at::set_num_threads(static_cast<int>(absl::GetFlag(FLAGS_threads)));
  const int64_t sequences = absl::GetFlag(FLAGS_sequences);
  const bench::MachineWatch watch;
  Trained adamw(training::OptimizerKind::kAdamW);
  Trained muon(training::OptimizerKind::kMuon);
  std::vector<Round> rounds;
  adamw.pass(1);
  for (int64_t i = 0; i <= absl::GetFlag(FLAGS_rounds); ++i) {
    Round round{};
    round.pass_of_a_token = seconds_of([&] { muon.pass(sequences); }) / static_cast<double>(sequences * kContext);
    round.adamw = seconds_of([&] { adamw.optimizer->step(); });
    round.muon = seconds_of([&] { muon.optimizer->step(); });
    if (i > 0) rounds.push_back(round);
  }
  std::printf("10.7 million parameters, %d threads, iterations in %s\n", at::get_num_threads(),
              c10::toString(optim::native_ns_dtype(at::kCPU)));
  std::printf("  pass: %.3f ms per token, step of AdamW: %.1f ms, step of Muon: %.1f ms\n",
              1e3 * median(of_rounds(rounds, [](const Round& r) { return r.pass_of_a_token; })),
              1e3 * median(of_rounds(rounds, [](const Round& r) { return r.adamw; })),
              1e3 * median(of_rounds(rounds, [](const Round& r) { return r.muon; })));
  double share = 0;
  for (const int64_t tokens : kBatches) {
    share = median(of_rounds(
        rounds, [&](const Round& r) { return r.muon / (r.muon + r.pass_of_a_token * static_cast<double>(tokens)); }));
    std::printf("  batch of %5lld tokens: Muon's step is %.1f%% of the training step\n", static_cast<long long>(tokens),
                100 * share);
  }
  const bool met = share <= kLargestShare;
  std::printf("  %s: target %.0f%% of the largest batch's step\n", met ? "PASS" : "FAIL", 100 * kLargestShare);
  return bench::exit_code(met, watch);
}

program::Description description() {
  program::Description description;
  description.name = "narrowcast_muon_bench";
  description.version = "0";
  description.summary = "Times Muon's step beside the passes of a training, and checks the target.";
  description.usage = "narrowcast_muon_bench [flags]";
  description.groups = {{"Measurement", {"rounds", "threads", "sequences"}}};
  description.examples = {{"the target's own case", "narrowcast_muon_bench"}};
  description.exit_codes = {{0, "the target was met, or the machine was busy"}, {1, "the target was missed"}};
  return description;
}

}  // namespace
}  // namespace narrowcast

int main(int argc, char** argv) {
  return narrowcast::program::run_main(narrowcast::description(), argc, argv,
                                       [](const auto&) { return narrowcast::run(); });
}

#include "tests/bench/numerics/loss_table.h"

#include <algorithm>
#include <cmath>
#include <cstdio>
#include <fstream>
#include <nlohmann/json.hpp>
#include <numeric>
#include <optional>
#include <utility>

#include "trainer/train/files/file_io.h"

namespace narrowcast::bench {
namespace {

using nlohmann::json;

// Identifies a training.
json key_of(const SimulationOptions& options, const std::string& name) {
  json key = {{"hook", name},
              {"model", options.model},
              {"model_options", options.model_options},
              {"data", options.data},
              {"ranks", options.ranks},
              {"steps", options.steps},
              {"batch_size", options.batch_size},
              {"learning_rate", options.learning_rate},
              {"aligned", options.aligned},
              {"seed", options.seed}};
  if (options.tf32) key["tf32"] = true;
  if (!options.held_out) key["held_out"] = false;
  if (!options.device.is_cpu()) key["device"] = c10::DeviceTypeName(options.device.type(), /*lower_case=*/true);
  return key;
}

std::optional<double> find_loss(const std::string& path, const json& key) {
  std::ifstream file(path);
  for (std::string line; std::getline(file, line);) {
    json saved = json::parse(line, /*callback=*/nullptr, /*allow_exceptions=*/false);
    if (saved.is_object() && saved.value("loss", json()).is_number()) {
      const auto loss = saved["loss"].get<double>();
      saved.erase("loss");
      if (saved == key) return loss;
    }
  }
  return std::nullopt;
}

struct Spread {
  double mean = 0;
  double standard_error = 0;
};

Spread spread_of(const std::vector<double>& values) {
  const auto count = static_cast<double>(values.size());
  const double mean = std::accumulate(values.begin(), values.end(), 0.0) / count;
  double squares = 0;
  for (const double value : values) squares += (value - mean) * (value - mean);
  return {mean, std::sqrt(squares / std::max(1.0, count - 1) / count)};
}

}  // namespace

SavedLosses::SavedLosses(std::string path) : path_(std::move(path)) {
  if (!path_.empty()) files::JsonLinesFile(path_, files::JsonLinesMode::kAppend);  // Fails early if not writable.
}

double SavedLosses::loss_of(const SimulationOptions& options, int64_t seed, const std::string& name,
                            const MeanOfRanks& mean) const {
  SimulationOptions training = options;
  training.seed = seed;
  training.mean = mean;
  if (path_.empty()) return simulate_training(training, {});
  json key = key_of(training, name);
  if (const std::optional<double> saved = find_loss(path_, key)) return *saved;
  key["loss"] = simulate_training(training, {});
  files::JsonLinesFile(path_, files::JsonLinesMode::kAppend).append(key);
  return key["loss"].get<double>();
}

void train_part(const SimulationOptions& options, const std::vector<SimulatedHook>& hooks, int64_t seeds,
                const Part& part, const SavedLosses& saved) {
  std::vector<SimulatedHook> all{{"none", no_hook}};
  all.insert(all.end(), hooks.begin(), hooks.end());
  const int64_t trainings = static_cast<int64_t>(all.size()) * seeds;
  for (int64_t i = part.index; i < trainings; i += part.count) {
    const SimulatedHook& hook = all[static_cast<size_t>(i % static_cast<int64_t>(all.size()))];
    saved.loss_of(options, i / static_cast<int64_t>(all.size()), hook.name, hook.mean);
  }
}

bool print_losses(const SimulationOptions& options, const std::vector<SimulatedHook>& hooks, int64_t seeds,
                  const SavedLosses& saved) {
  const auto loss_of = [&](int64_t seed, const std::string& name, const MeanOfRanks& mean) {
    return saved.loss_of(options, seed, name, mean);
  };
  std::vector<double> plain;
  for (int64_t seed = 0; seed < seeds; ++seed) plain.push_back(loss_of(seed, "none", no_hook));
  std::printf("\n%s loss less that of none (%.4f), over %d seeds (x 1e-3)\n%-20s %8s %8s\n",
              options.held_out ? "validation" : "training", spread_of(plain).mean, static_cast<int>(seeds),
              "hook or format", "mean", "s.e.");
  bool met = true;
  for (const SimulatedHook& hook : hooks) {
    std::vector<double> gaps;
    for (int64_t seed = 0; seed < seeds; ++seed) {
      gaps.push_back(loss_of(seed, hook.name, hook.mean) - plain[static_cast<size_t>(seed)]);
    }
    const Spread gap = spread_of(gaps);
    std::printf("%-20s %8.2f %8.2f", hook.name.c_str(), gap.mean * 1e3, gap.standard_error * 1e3);
    if (std::isfinite(hook.most_lost)) {
      const bool holds = gap.mean <= hook.most_lost;
      std::printf("  %s (target %.0f)", holds ? "holds" : "MISSED", hook.most_lost * 1e3);
      met = met && holds;
    }
    std::printf("\n");
    std::fflush(stdout);
  }
  return met;
}

}  // namespace narrowcast::bench

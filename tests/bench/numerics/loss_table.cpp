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

// What a training is.
json key_of(const SimulationOptions& options, const std::string& name) {
  return {{"hook", name},
          {"model", options.model},
          {"model_options", options.model_options},
          {"data", options.data},
          {"ranks", options.ranks},
          {"steps", options.steps},
          {"batch_size", options.batch_size},
          {"learning_rate", options.learning_rate},
          {"aligned", options.aligned},
          {"seed", options.seed}};
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
  if (!path_.empty()) files::JsonLinesFile(path_, files::JsonLinesMode::kAppend);  // An error at once.
}

double SavedLosses::get(const SimulationOptions& options, const std::string& name,
                        const std::function<double()>& train) const {
  if (path_.empty()) return train();
  json key = key_of(options, name);
  if (const std::optional<double> saved = find_loss(path_, key)) return *saved;
  key["loss"] = train();
  files::JsonLinesFile(path_, files::JsonLinesMode::kAppend).append(key);
  return key["loss"].get<double>();
}

bool print_losses(const SimulationOptions& options, const std::vector<SimulatedHook>& hooks, int64_t seeds,
                  const SavedLosses& saved) {
  const auto loss_of = [&](int64_t seed, const std::string& name, const MeanOfRanks& mean) {
    SimulationOptions training = options;
    training.seed = seed;
    training.mean = mean;
    return saved.get(training, name, [&] { return simulate_training(training, {}); });
  };
  std::vector<double> plain;
  for (int64_t seed = 0; seed < seeds; ++seed) plain.push_back(loss_of(seed, "none", exact_mean));
  std::printf("\nvalidation loss less that of none (%.4f), over %d seeds (x 1e-3)\n%-20s %8s %8s\n",
              spread_of(plain).mean, static_cast<int>(seeds), "hook or format", "mean", "s.e.");
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

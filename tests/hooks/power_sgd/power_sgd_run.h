// Steps of a PowerSGD hook on parameters of any shapes, and a float64 reference that computes one matrix at a time.
#pragma once

#include <ATen/ATen.h>
#include <gtest/gtest.h>

#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include <narrowcast/hooks.h>
#include <narrowcast/wire_format.h>
#include "ops/collectives/power_sgd/low_rank.h"
#include "tests/hooks/all/parameters_bucket.h"
#include "tests/support/ranks.h"

namespace narrowcast::hooks {

// The gradients of one rank in one step, concatenated: all parameters are in one bucket.
using StepGradients = std::function<at::Tensor(int64_t rank, int64_t step)>;

struct PowerSgdRun {
  std::string hook = "power_sgd";
  PowerSgdOptions options = {.rank = 1, .start = 0};
  std::vector<std::vector<int64_t>> shapes = {};
  int64_t world_size = 2;
  int64_t steps = 1;
  // Every rank is a node: ranks on one machine would otherwise send nothing. A measured link could change the number of
  // hops.
  WireOptions wire = {.node_size = 1, .link_gbit = 10, .link_us = 50};
};

inline std::vector<at::Tensor> parameters_of(const PowerSgdRun& run, at::ScalarType dtype) {
  std::vector<at::Tensor> parameters;
  for (const auto& sizes : run.shapes) parameters.push_back(at::zeros(sizes, dtype));
  return parameters;
}

// The hook's result for the bucket.
inline at::Tensor average_step(CommHook& hook, const std::vector<at::Tensor>& parameters, const at::Tensor& gradients) {
  std::vector<at::Tensor> parts;
  int64_t begin = 0;
  for (const at::Tensor& parameter : parameters) {
    parts.push_back(gradients.narrow(0, begin, parameter.numel()));
    begin += parameter.numel();
  }
  auto bucket = make_parameters_bucket(parameters, parts);
  const auto future = hook.runHook(bucket);
  future->waitAndThrow();
  return hook.parseHookResult(future->value()).clone();
}

struct PowerSgdResult {
  std::vector<std::vector<at::Tensor>> means;  // by rank and step
  std::vector<HookState> states;               // by rank, at the end; parameters are named 0, 1, 2...
  std::vector<int64_t> payload_bytes;          // by rank
};

inline std::vector<NamedParameter> named(const std::vector<at::Tensor>& parameters) {
  std::vector<NamedParameter> result;
  for (const at::Tensor& parameter : parameters) result.push_back({std::to_string(result.size()), parameter});
  return result;
}

// Runs them one after the other, on the same ranks. The first run gives the world size.
inline std::vector<PowerSgdResult> run_power_sgd(const std::vector<PowerSgdRun>& runs, const StepGradients& gradients) {
  const int64_t world_size = runs.at(0).world_size;
  std::vector<PowerSgdResult> results(
      runs.size(), {std::vector<std::vector<at::Tensor>>(world_size), std::vector<HookState>(world_size),
                    std::vector<int64_t>(world_size)});
  testing::run_ranks(world_size, [&](int64_t rank, const c10::intrusive_ptr<c10d::ProcessGroup>& group) {
    for (size_t i = 0; i < runs.size(); ++i) {
      const PowerSgdRun& run = runs[i];
      const auto hook =
          create_comm_hook(run.hook, {.process_group = group, .wire = run.wire, .power_sgd = run.options});
      const auto parameters = parameters_of(run, gradients(rank, 0).scalar_type());
      for (int64_t step = 0; step < run.steps; ++step) {
        results[i].means[rank].push_back(average_step(*hook, parameters, gradients(rank, step)));
      }
      results[i].states[rank] = hook->state(named(parameters));
      results[i].payload_bytes[rank] = hook->payload_bytes_sent();
    }
  });
  return results;
}

inline PowerSgdResult run_power_sgd(const PowerSgdRun& run, const StepGradients& gradients) {
  return run_power_sgd(std::vector<PowerSgdRun>{run}, gradients)[0];
}

inline double l2_norm(const at::Tensor& tensor) { return tensor.to(at::kDouble).norm().item<double>(); }

inline at::Tensor float64_mean(const StepGradients& gradients, int64_t world_size, int64_t step) {
  at::Tensor sum = gradients(0, step).to(at::kDouble);
  for (int64_t rank = 1; rank < world_size; ++rank) sum = sum + gradients(rank, step).to(at::kDouble);
  return sum / static_cast<double>(world_size);
}

inline void expect_equal_replicas(const PowerSgdResult& result) {
  for (size_t rank = 1; rank < result.means.size(); ++rank) {
    for (size_t step = 0; step < result.means[rank].size(); ++step) {
      EXPECT_TRUE(at::equal(result.means[rank][step], result.means[0][step])) << "rank " << rank << " step " << step;
    }
  }
}

// The sum of all ranks' residuals as a part of the mean, of all parameters: [numel], float64.
inline at::Tensor kept_of(const std::vector<HookState>& states) {
  at::Tensor kept;
  for (const HookState& state : states) {
    std::vector<at::Tensor> parts;
    for (int64_t i = 0; state.contains("residual." + std::to_string(i)); ++i) {
      parts.push_back(state.at("residual." + std::to_string(i)).to(at::kDouble));
    }
    const at::Tensor own = at::cat(parts) / static_cast<double>(states.size());
    kept = kept.defined() ? kept + own : own;
  }
  return kept;
}

// Normal numbers, different for each rank and step.
inline StepGradients random_gradients(int64_t numel, at::ScalarType dtype) {
  return [=](int64_t rank, int64_t step) {
    at::Tensor numbers = at::empty({numel}, dtype);
    collectives::NormalNumbers(1000 * rank + step + 1, collectives::LowRankBits::kOfPyTorch).fill(numbers);
    return numbers;
  };
}

// The run in several formats, with and without alternating steps.
inline std::vector<PowerSgdRun> in_all_formats(const PowerSgdRun& usual) {
  std::vector<PowerSgdRun> runs;
  for (const WireFormat wire : {WireFormat::kFp32, WireFormat::kInt8B32, WireFormat::kBf16}) {
    for (const bool alternate : {false, true}) {
      runs.push_back(usual);
      runs.back().options.alternate = alternate;
      runs.back().options.wire = wire;
    }
  }
  return runs;
}

// Each step rounds values of at most the gradients' size: W sums of P, Q and the rest, products, differences.
inline double rounding_of_all_kept(int64_t world_size) { return 16.0 * static_cast<double>(world_size + 4) * 0x1p-24; }

// Expects that the residuals contain everything that the steps' means lack.
inline void expect_all_kept(const std::vector<PowerSgdRun>& runs, int64_t numel) {
  const auto gradients = random_gradients(numel, at::kFloat);
  const std::vector<PowerSgdResult> results = run_power_sgd(runs, gradients);
  for (size_t i = 0; i < runs.size(); ++i) {
    const int64_t world_size = runs[i].world_size;
    expect_equal_replicas(results[i]);
    at::Tensor given = at::zeros({numel}, at::kDouble);
    at::Tensor means = at::zeros_like(given);
    for (int64_t step = 0; step < runs[i].steps; ++step) {
      given += float64_mean(gradients, world_size, step);
      means += results[i].means[0][step].to(at::kDouble);
    }
    const at::Tensor kept = kept_of(results[i].states);
    EXPECT_LE(l2_norm(given - means - kept), rounding_of_all_kept(world_size) * l2_norm(given))
        << to_string(runs[i].options.wire) << " " << runs[i].options.alternate;
    EXPECT_GT(l2_norm(kept), 1e-3 * l2_norm(given)) << "a test of nothing";
  }
}

// PowerSGD of one matrix of all ranks, from its formulas, in float64. QR makes columns orthonormal.
class ReferencePowerSgd {
 public:
  // `drawn`: dtype of the random numbers; PyTorch draws different ones for each dtype.
  ReferencePowerSgd(const PowerSgdOptions& options, int64_t rows, int64_t columns, int64_t world_size,
                    at::ScalarType drawn = at::kDouble)
      : options_(options),
        rank_(std::min({rows, columns, options.rank.value()})),
        rows_(rows),
        columns_(columns),
        errors_(world_size, at::zeros({rows, columns}, at::kDouble)),
        drawn_(drawn),
        draws_(static_cast<uint32_t>(options.seed)) {}

  // `gradients`: [rows, columns] by rank. Returns the mean.
  at::Tensor step(const std::vector<at::Tensor>& gradients) {
    std::vector<at::Tensor> matrices;
    for (size_t i = 0; i < gradients.size(); ++i) matrices.push_back(gradients[i] + errors_[i]);
    const bool sends_p = options_.alternate && step_++ % 2 == 1;
    return options_.alternate ? exchange_one(matrices, sends_p) : exchange_both(matrices);
  }

 private:
  static at::Tensor mean(const std::vector<at::Tensor>& parts) { return at::stack(parts).mean(0); }
  static at::Tensor orthonormal(const at::Tensor& columns) { return std::get<0>(at::linalg_qr(columns)); }

  at::Tensor drawn(int64_t rows) {
    at::Tensor numbers = at::empty({1, rows, rank_}, drawn_);
    collectives::NormalNumbers(draws_.next(), options_.memory == PowerSgdMemory::kLocal
                                                  ? collectives::LowRankBits::kOfAnyMachine
                                                  : collectives::LowRankBits::kOfPyTorch)
        .fill(numbers);
    return numbers[0].to(at::kDouble);
  }

  at::Tensor exchange_both(const std::vector<at::Tensor>& matrices) {
    const bool has_q = options_.warm_start && factor_.defined();
    const at::Tensor q = orthonormal(has_q ? factor_ : drawn(columns_));
    std::vector<at::Tensor> parts;
    for (const auto& matrix : matrices) parts.push_back(matrix.mm(q));
    const at::Tensor p = orthonormal(mean(parts));
    std::vector<at::Tensor> own;
    for (const auto& matrix : matrices) own.push_back(matrix.t().mm(p));
    factor_ = mean(own);
    std::vector<at::Tensor> products;
    for (const auto& part : own) products.push_back(p.mm(part.t()));
    return keep(matrices, products);
  }

  at::Tensor exchange_one(const std::vector<at::Tensor>& matrices, bool sends_p) {
    const at::Tensor known = orthonormal(factor_.defined() ? factor_ : drawn(rows_));
    std::vector<at::Tensor> own;
    std::vector<at::Tensor> products;
    for (const auto& matrix : matrices) {
      own.push_back(sends_p ? matrix.mm(known) : matrix.t().mm(known));
      products.push_back(sends_p ? own.back().mm(known.t()) : known.mm(own.back().t()));
    }
    factor_ = mean(own);
    return keep(matrices, products);
  }

  at::Tensor keep(const std::vector<at::Tensor>& matrices, const std::vector<at::Tensor>& products) {
    const at::Tensor result = mean(products);
    for (size_t i = 0; options_.error_feedback && i < matrices.size(); ++i) {
      errors_[i] = matrices[i] - (options_.memory == PowerSgdMemory::kLocal ? products[i] : result);
    }
    return result;
  }

  const PowerSgdOptions options_;
  const int64_t rank_;
  const int64_t rows_;
  const int64_t columns_;
  std::vector<at::Tensor> errors_;
  const at::ScalarType drawn_;
  collectives::SeedDraws draws_;
  at::Tensor factor_;
  int64_t step_ = 0;
};

}  // namespace narrowcast::hooks

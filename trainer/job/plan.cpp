#include "trainer/job/plan.h"

#include <algorithm>
#include <sstream>
#include <vector>

#include "hooks/comm_hook.h"
#include "trainer/training/learning_rate.h"

namespace narrowcast::job {
namespace {

int64_t count_parameters(const models::Model& model) {
  int64_t count = 0;
  for (const at::Tensor& parameter : model.parameters()) {
    count += parameter.numel();
  }
  return count;
}

void add_training(nlohmann::json& plan, const TrainJob& job, const JobInputs& inputs) {
  const training::TrainingOptions& options = job.training;
  const training::LearningRate rate(options.learning_rate, options.steps);
  plan["steps"] = options.steps;
  plan["accumulation_steps"] = options.accumulation_steps;
  plan[inputs.unit + "_per_step"] = options.batch_size * inputs.units_per_sample;
  plan["optimizer"] = options.optimizer.kind == training::OptimizerKind::kAdamW ? "adamw" : "sgd";
  plan["learning_rate"] = options.learning_rate.peak;
  plan["schedule"] = options.learning_rate.schedule == training::Schedule::kCosine ? "cosine" : "constant";
  plan["min_learning_rate"] = rate.minimum();
  plan["warmup_steps"] = rate.warmup_steps();
  plan["weight_decay"] = options.optimizer.weight_decay;
  plan["momentum"] = options.optimizer.momentum;
  plan["clip_grad_norm"] = options.clip_grad_norm;
  plan["skip_nonfinite_steps"] = options.skip_nonfinite_steps;
  plan["eval_every"] = options.eval_every;
  plan["eval_batches"] = options.eval_batches;
  plan["log_every"] = options.log_every;
}

void add_data(nlohmann::json& plan, const JobInputs& inputs) {
  plan["data"] = inputs.data_name;
  if (inputs.dataset != nullptr) {
    plan["training_samples"] = inputs.dataset->training_size();
    plan["held_out_samples"] = inputs.dataset->held_out_size();
  }
  if (inputs.bigram_entropy.has_value()) {
    plan["bigram_entropy"] = *inputs.bigram_entropy;
  }
}

}  // namespace

nlohmann::json make_plan(const TrainJob& job, const JobInputs& inputs, int64_t world_size) {
  nlohmann::json plan;
  plan["version"] = job.version;
  plan["ranks"] = world_size;
  plan["model"] = job.model;
  plan["model_options"] = inputs.model->options();
  plan["parameters"] = count_parameters(*inputs.model);
  plan["seed"] = job.seed;
  add_data(plan, inputs);
  if (inputs.dataset != nullptr) {
    plan["batch_size"] = job.training.batch_size;
    plan["batch_size_per_rank"] = job.training.batch_size / world_size;
  }
  if (job.verification.has_value()) {
    plan["hooks"] = job.verification->hooks;
  } else {
    plan["hook"] = job.ddp.hook();
    add_training(plan, job, inputs);
    if (const auto bytes = expected_payload_bytes(job.ddp.hook(), plan["parameters"], world_size)) {
      plan["payload_bytes_per_step_and_rank"] = *bytes;
    }
  }
  return plan;
}

std::string plan_text(const nlohmann::json& plan) {
  size_t width = 0;
  for (const auto& [name, value] : plan.items()) {
    width = std::max(width, name.size());
  }
  std::ostringstream text;
  for (const auto& [name, value] : plan.items()) {
    text << name << std::string(width - name.size() + 2, ' ')
         << (value.is_string() ? value.get<std::string>() : value.dump()) << "\n";
  }
  return text.str();
}

std::vector<NamedValue> plan_values(const nlohmann::json& plan) {
  std::vector<NamedValue> values;
  for (const auto& [name, value] : plan.items()) {
    values.push_back({name, value.is_string() ? value.get<std::string>() : value.dump()});
  }
  return values;
}

std::optional<int64_t> expected_payload_bytes(const std::string& hook, int64_t parameters, int64_t world_size) {
  const int64_t peers = world_size - 1;
  if (hook == "none" || hook == "allreduce") {
    return hooks::ring_all_reduce_bytes(4 * parameters, world_size);
  }
  if (hook == "fp16_compress" || hook == "bf16_compress") {
    return hooks::ring_all_reduce_bytes(2 * parameters, world_size);
  }
  if (hook == "quantize_per_tensor") {
    return peers * parameters;
  }
  if (hook == "quantize_per_channel") {
    return peers * (parameters + parameters / 512 * 8);
  }
  return hook == "noop" ? std::optional<int64_t>(0) : std::nullopt;
}

}  // namespace narrowcast::job

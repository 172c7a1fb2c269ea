#include "trainer/train/job/job_settings.h"

#include <ATen/Parallel.h>
#include <ATen/Version.h>
#include <torch/version.h>

namespace narrowcast::job {
namespace {

using nlohmann::json;

// Of the plan's entries, those that mean nothing for the parameters, or follow from others.
constexpr const char* kFree[] = {"batch_size_per_rank",
                                 "eval_every",
                                 "eval_batches",
                                 "log_every",
                                 "data",
                                 "payload_bytes_per_step_and_rank",
                                 "checkpoint_dir",
                                 "checkpoint_every",
                                 "keep_checkpoints",
                                 "resume",
                                 "resume_from"};

constexpr const char* kCircumstances[] = {"ranks", "accumulation_steps", "version", "device"};

// Older checkpoints lack them.
constexpr const char* kAddedLater[] = {"data_hash"};

// Of a channel, before it could be chosen. It stays what it was if the default becomes another.
constexpr int64_t kFirstChannelSize = 512;

}  // namespace

checkpoint::Description describe_job(const TrainJob& job, const json& plan) {
  checkpoint::Description description = {.settings = plan, .circumstances = json::object()};
  json& settings = description.settings;
  json& circumstances = description.circumstances;
  for (const char* const name : kCircumstances) {
    circumstances[name] = plan.at(name);
    settings.erase(name);
  }
  for (const char* const name : kFree) {
    settings.erase(name);
  }
  settings.update(plan.at("model_options"));
  settings.erase("model_options");
  if (job.training.learning_rate.schedule == training::Schedule::kConstant) {
    settings.erase("steps");
  }
  settings["bucket_cap_mb"] = job.ddp.bucket_cap_mb();
  circumstances["threads"] = at::get_num_threads();
  circumstances["libtorch"] = TORCH_VERSION;
  circumstances["instructions"] = at::get_cpu_capability();
  return description;
}

json comparable_settings(json settings, const json& saved) {
  for (const char* const name : kAddedLater) {
    if (!saved.contains(name)) {
      settings.erase(name);
    }
  }
  return settings;
}

json complete_settings(json saved) {
  if (saved.value("hook", json()) == "quantize_per_channel" && !saved.contains("channel_size")) {
    saved["channel_size"] = kFirstChannelSize;
  }
  return saved;
}

}  // namespace narrowcast::job

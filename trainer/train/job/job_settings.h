// Which of a job's values a checkpoint binds.
#pragma once

#include <nlohmann/json.hpp>

#include "trainer/train/checkpoint/checkpoint_writer.h"
#include "trainer/train/job/train_job.h"

namespace narrowcast::job {

// From the plan of a job (plan.h). The settings: model, data, optimizer, seed, hook, buckets. How often to look, report
// and save is free, and so is the number of steps with a constant schedule. The circumstances may change, but with
// them bits do: ranks, threads, accumulation, versions, the processor's instructions.
checkpoint::Description describe_job(const TrainJob& job, const nlohmann::json& plan);

// `settings` of such a job without those that checkpoints did not hold from the beginning and that `saved`, an older
// one's, therefore lacks: what is not there cannot be compared.
nlohmann::json comparable_settings(nlohmann::json settings, const nlohmann::json& saved);

// The settings `saved` of a checkpoint with those that older ones do not name because there was no choice.
nlohmann::json complete_settings(nlohmann::json saved);

}  // namespace narrowcast::job

// The flags of narrowcast-train for new and trained models.
#pragma once

#include <optional>

#include <narrowcast/model.h>
#include "models/table/model_table.h"
#include "trainer/train/flags/given_flags.h"
#include "trainer/train/inference/evaluation_job.h"

namespace narrowcast {

// The evaluation that the command line requests; empty without --evaluate. Throws as read_train_job (train_flags.h)
// does.
std::optional<inference::EvaluationJob> read_evaluation_job(const Given& given);

// The row of --model. Throws c10::ValueError for an unknown name. If the name is the path of a file, the message
// describes the file (files::describe_foreign_model).
const models::ModelRow& given_model(const Given& given);

// Throws c10::ValueError naming the flag if a flag was given that has no effect with the given model, or for an unknown
// model.
void refuse_other_models_options(const Given& given);

// The model options that were given. The model rejects an option that it does not have.
models::ModelOptions read_model_options(const Given& given);

}  // namespace narrowcast

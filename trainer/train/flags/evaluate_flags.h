// The flags of narrowcast-train --evaluate.
#pragma once

#include <optional>
#include <string>
#include <vector>

#include "trainer/base/program/command_line.h"
#include "trainer/train/evaluation/evaluation_job.h"

namespace narrowcast {

// The names of the flags that mean something with --evaluate only, and its own.
const std::vector<std::string>& evaluation_flags();

// The evaluation that the command line asks for; none without --evaluate. Throws c10::ValueError for a flag that
// cannot take effect with it; values are checked where they are used.
std::optional<evaluation::EvaluationJob> read_evaluation_job(const program::CommandLine& line);

}  // namespace narrowcast

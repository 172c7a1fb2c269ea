// The rows of the options of evaluations, output, checkpoints, and of checks instead of a training.
#pragma once

#include <vector>

#include "trainer/train/options/arguments.h"
#include "trainer/train/options/option.h"

namespace narrowcast::options {

std::vector<Option> output_rows(Arguments& arguments);
std::vector<Option> checkpoint_rows(Arguments& arguments);
std::vector<Option> check_rows(Arguments& arguments);

}  // namespace narrowcast::options

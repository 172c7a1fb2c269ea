// The rows of the options of optimizer steps, and of the processors that compute them.
#pragma once

#include <vector>

#include "trainer/train/options/arguments.h"
#include "trainer/train/options/option.h"

namespace narrowcast::options {

std::vector<Option> training_rows(Arguments& arguments);
std::vector<Option> processor_rows(Arguments& arguments);

}  // namespace narrowcast::options

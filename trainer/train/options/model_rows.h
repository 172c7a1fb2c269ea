// The rows of the options of new and trained models, and of the data.
#pragma once

#include <vector>

#include "trainer/train/options/arguments.h"
#include "trainer/train/options/option.h"

namespace narrowcast::options {

std::vector<Option> model_rows(Arguments& arguments);
std::vector<Option> data_rows(Arguments& arguments);
std::vector<Option> trained_model_rows(Arguments& arguments);

}  // namespace narrowcast::options

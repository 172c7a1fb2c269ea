// The rows by group. option_table.h combines them.
#pragma once

#include <vector>

#include "trainer/train/options/arguments.h"
#include "trainer/train/options/option.h"

namespace narrowcast::options {

// model_rows.cpp
std::vector<Option> model_rows(Arguments& arguments);
std::vector<Option> data_rows(Arguments& arguments);
std::vector<Option> trained_model_rows(Arguments& arguments);

// training_rows.cpp
std::vector<Option> training_rows(Arguments& arguments);
std::vector<Option> processor_rows(Arguments& arguments);

// output_rows.cpp
std::vector<Option> output_rows(Arguments& arguments);
std::vector<Option> checkpoint_rows(Arguments& arguments);
std::vector<Option> check_rows(Arguments& arguments);

// exchange_rows.cpp
std::vector<Option> exchange_rows(Arguments& arguments);

}  // namespace narrowcast::options

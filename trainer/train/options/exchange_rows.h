// The rows of the options of averaging gradients and parameters over ranks.
#pragma once

#include <vector>

#include "trainer/train/options/arguments.h"
#include "trainer/train/options/option.h"

namespace narrowcast::options {

std::vector<Option> exchange_rows(Arguments& arguments);

}  // namespace narrowcast::options

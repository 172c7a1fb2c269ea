// The verdicts on the hooks as a table for people.
#pragma once

#include <string>
#include <vector>

#include "trainer/train/verification/verify_gradients.h"

namespace narrowcast::verification {

// One line per hook under a heading, columns aligned, each line ended.
std::string gradient_table(const std::vector<HookReport>& reports);

}  // namespace narrowcast::verification

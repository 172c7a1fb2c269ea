// The verdicts on the hooks as a table for people.
#pragma once

#include <string>
#include <vector>

#include "ops/export.h"
#include "trainer/verification/verify_gradients.h"

namespace narrowcast::verification {

// One line per hook under a heading, columns aligned, each line ended.
NARROWCAST_EXPORT std::string gradient_table(const std::vector<HookReport>& reports);

}  // namespace narrowcast::verification

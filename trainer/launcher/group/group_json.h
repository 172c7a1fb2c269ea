// What launchers write into the store, as JSON. Texts that are no UTF-8 lose the bad bytes.
#pragma once

#include <string>

#include "trainer/launcher/group/group.h"

namespace narrowcast::launcher {

std::string to_text(const NodeDescription& node);
std::string to_text(const RoundReport& report);
std::string to_text(const Decision& decision);

// Throw CorruptInputError for a text that is none.
NodeDescription parse_node(const std::string& text);
RoundReport parse_report(const std::string& text);
Decision parse_decision(const std::string& text);

}  // namespace narrowcast::launcher

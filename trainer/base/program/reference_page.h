// The flags of a program as a page of documentation.
#pragma once

#include <string>

#include "trainer/base/program/description.h"

namespace narrowcast::program {

// A page for docs/ in Markdown: one table of flags per group. If flags have Flag::at_resume, a column says whether a
// resumed training may have another value.
std::string reference_page(const Description& description);

}  // namespace narrowcast::program

// The version of the library that a program runs with.
#pragma once

#include <narrowcast/export.h>

namespace narrowcast {

// The version of this library, "MAJOR.MINOR.PATCH". All ranks of a job must have the same.
NARROWCAST_EXPORT const char* version();

}  // namespace narrowcast

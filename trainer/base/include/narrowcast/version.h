// The version of the library that a program runs with.
#pragma once

#include <narrowcast/export.h>

namespace narrowcast {

// The version of this library, for instance "0.1.0". All ranks of a job must have the same.
NARROWCAST_EXPORT const char* version();

}  // namespace narrowcast

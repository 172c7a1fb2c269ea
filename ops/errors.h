// The third of the project's error classes. The other two are LibTorch's own:
// c10::ValueError and c10::TypeError (wrong use), c10::DistBackendError (a peer
// or the network failed). docs/errors.md says what a caller can do about each.
#pragma once

#include <c10/util/Exception.h>

#include "ops/export.h"

namespace narrowcast {

// A file or a message that does not hold what it must. Nothing of it was used.
// Thrown by NARROWCAST_CHECK_INPUT below.
class NARROWCAST_EXPORT CorruptInputError : public c10::Error {
  using Error::Error;
};

}  // namespace narrowcast

// Throws narrowcast::CorruptInputError with the concatenated arguments unless `condition` holds.
#define NARROWCAST_CHECK_INPUT(condition, ...)                                                     \
  do {                                                                                             \
    if (!(condition)) {                                                                            \
      throw ::narrowcast::CorruptInputError({__func__, __FILE__, static_cast<uint32_t>(__LINE__)}, \
                                            ::c10::str(__VA_ARGS__));                              \
    }                                                                                              \
  } while (false)

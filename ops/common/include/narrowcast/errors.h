// The project's own error classes. The others are LibTorch's: c10::ValueError and c10::TypeError (wrong use) and
// c10::DistBackendError (a peer or the network failed). docs/reference/errors.md describes what a caller can do about
// each.
#pragma once

#include <c10/util/Exception.h>

#include <narrowcast/export.h>

namespace narrowcast {

// A file or a message has invalid content. Nothing of it was used. Thrown by NARROWCAST_CHECK_INPUT below.
class NARROWCAST_EXPORT CorruptInputError : public c10::Error {
  using Error::Error;
};

// An output of a running job could not be written, e.g. because the disk is full. Earlier output is unchanged.
class NARROWCAST_EXPORT OutputError : public c10::Error {
  using Error::Error;
};

// Ranks that must hold equal bits differ: the data of one rank were corrupted, or it runs a different program.
class NARROWCAST_EXPORT ReplicasDifferError : public c10::Error {
  using Error::Error;
};

}  // namespace narrowcast

// Throws narrowcast::ReplicasDifferError with the concatenated arguments unless `condition` holds.
#define NARROWCAST_CHECK_REPLICAS(condition, ...)                                                    \
  do {                                                                                               \
    if (!(condition)) {                                                                              \
      throw ::narrowcast::ReplicasDifferError({__func__, __FILE__, static_cast<uint32_t>(__LINE__)}, \
                                              ::c10::str(__VA_ARGS__));                              \
    }                                                                                                \
  } while (false)

// Throws narrowcast::OutputError with the concatenated arguments unless `condition` holds.
#define NARROWCAST_CHECK_OUTPUT(condition, ...)                                                                        \
  do {                                                                                                                 \
    if (!(condition)) {                                                                                                \
      throw ::narrowcast::OutputError({__func__, __FILE__, static_cast<uint32_t>(__LINE__)}, ::c10::str(__VA_ARGS__)); \
    }                                                                                                                  \
  } while (false)

// Throws narrowcast::CorruptInputError with the concatenated arguments unless `condition` holds.
#define NARROWCAST_CHECK_INPUT(condition, ...)                                                     \
  do {                                                                                             \
    if (!(condition)) {                                                                            \
      throw ::narrowcast::CorruptInputError({__func__, __FILE__, static_cast<uint32_t>(__LINE__)}, \
                                            ::c10::str(__VA_ARGS__));                              \
    }                                                                                              \
  } while (false)

#include <narrowcast/version.h>

namespace narrowcast {

const char* version() { return NARROWCAST_VERSION; }

}  // namespace narrowcast

// Where narrowcast was built from.
#pragma once

namespace narrowcast::data {

// The absolute path of the project's folder, as of the build: it may be gone since.
extern const char* const kSourceFolder;

}  // namespace narrowcast::data

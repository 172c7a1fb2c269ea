// NARROWCAST_EXPORT marks what a library of the project offers to others; all
// other symbols are hidden.
#pragma once

#define NARROWCAST_EXPORT [[gnu::visibility("default")]]

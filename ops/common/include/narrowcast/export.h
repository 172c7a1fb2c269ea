// NARROWCAST_EXPORT marks the symbols that a library of the project exports; all other symbols are hidden. A private
// header uses it if another of our libraries needs a symbol that no public header declares: hooks are built on the
// engine, averages and nodes of ops. These symbols are listed in tests/package/exported_symbols.
#pragma once

#define NARROWCAST_EXPORT [[gnu::visibility("default")]]

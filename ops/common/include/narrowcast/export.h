// NARROWCAST_EXPORT marks what a library of the project offers to others; all
// other symbols are hidden. Private headers have it where another of our own
// libraries uses what a public header does not declare: hooks are made of ops'
// engine, averages and nodes. tests/package/exported_symbols lists these.
#pragma once

#define NARROWCAST_EXPORT [[gnu::visibility("default")]]

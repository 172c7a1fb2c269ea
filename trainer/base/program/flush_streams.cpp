#include "trainer/base/program/flush_streams.h"

#include <cstdio>
#include <iostream>

namespace narrowcast::program {

void flush_streams() {
  std::cout.flush();
  std::cerr.flush();
  std::fflush(stdout);  // Not all files: a thread that was left behind may hold the lock of another.
}

}  // namespace narrowcast::program

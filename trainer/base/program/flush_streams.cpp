#include "trainer/base/program/flush_streams.h"

#include <cstdio>
#include <iostream>

namespace narrowcast::program {

void flush_streams() {
  std::cout.flush();
  std::cerr.flush();
  std::fflush(nullptr);
}

}  // namespace narrowcast::program

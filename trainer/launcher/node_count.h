// How many nodes a job has, and where it meets, as users write it.
#pragma once

#include <cstdint>
#include <string>

namespace narrowcast::launcher {

// --nnodes
struct NodeCount {
  int64_t least = 1;
  int64_t most = 1;

  bool several() const { return most > 1; }
};

// "N" or "MIN:MAX". Throws c10::ValueError for anything else.
NodeCount parse_nnodes(const std::string& text);

struct Endpoint {
  std::string host;
  int64_t port = 0;
};

// "HOST:PORT", "[IPV6]:PORT", or a host alone, whose port is `default_port`. Throws c10::ValueError for anything else.
Endpoint parse_endpoint(const std::string& text, int64_t default_port);

}  // namespace narrowcast::launcher

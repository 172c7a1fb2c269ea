#include "trainer/launcher/node_count.h"

#include <absl/strings/numbers.h>
#include <c10/util/Exception.h>

namespace narrowcast::launcher {
namespace {

constexpr int64_t kMostNodes = 4096;

bool parse_count(const std::string& text, int64_t& count) {
  return absl::SimpleAtoi(text, &count) && count >= 1 && count <= kMostNodes;
}

}  // namespace

NodeCount parse_nnodes(const std::string& text) {
  const size_t colon = text.find(':');
  NodeCount count;
  const bool good = parse_count(text.substr(0, colon), count.least) &&
                    parse_count(colon == std::string::npos ? text : text.substr(colon + 1), count.most);
  TORCH_CHECK_VALUE(good && count.least <= count.most, "--nnodes=", text,
                    ": must be a number of nodes, or MIN:MAX, from 1 to ", kMostNodes);
  return count;
}

Endpoint parse_endpoint(const std::string& text, int64_t default_port) {
  const size_t colon = text.rfind(':');
  const bool bracketed = !text.empty() && text.back() == ']';
  const bool has_port = colon != std::string::npos && !bracketed;
  Endpoint endpoint{.host = text.substr(0, has_port ? colon : text.size()), .port = default_port};
  const bool good_port = !has_port || (absl::SimpleAtoi(text.substr(colon + 1), &endpoint.port) && endpoint.port >= 0 &&
                                       endpoint.port <= 65535);
  if (endpoint.host.starts_with('[') && endpoint.host.ends_with(']')) {
    endpoint.host = endpoint.host.substr(1, endpoint.host.size() - 2);
  } else if (endpoint.host.find(':') != std::string::npos) {
    endpoint.host.clear();  // An IPv6 address without brackets: nobody can tell where its port begins.
  }
  TORCH_CHECK_VALUE(good_port && !endpoint.host.empty(), "--rdzv_endpoint=", text,
                    ": must be HOST:PORT; an IPv6 address stands in brackets");
  return endpoint;
}

}  // namespace narrowcast::launcher

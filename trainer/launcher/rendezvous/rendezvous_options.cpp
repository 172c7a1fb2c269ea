#include "trainer/launcher/rendezvous/rendezvous_options.h"

#include <absl/strings/numbers.h>
#include <absl/strings/str_join.h>
#include <absl/strings/str_split.h>
#include <c10/util/Exception.h>

#include <cmath>
#include <functional>
#include <map>
#include <vector>

#include "trainer/base/network/addresses.h"
#include "trainer/launcher/group/group.h"

namespace narrowcast::launcher {
namespace {

constexpr int64_t kMostNodes = 4096;

bool parse_count(const std::string& text, int64_t& count) {
  return absl::SimpleAtoi(text, &count) && count >= 1 && count <= kMostNodes;
}

using Setter = std::function<void(RendezvousOptions&, const std::string&)>;

Setter time(std::chrono::milliseconds RendezvousOptions::*member) {
  return [member](RendezvousOptions& options, const std::string& value) {
    double seconds = 0;
    TORCH_CHECK_VALUE(absl::SimpleAtod(value, &seconds) && seconds > 0 && seconds <= kLongestSeconds,
                      "must be a number of seconds above 0 and up to ", kLongestSeconds);
    options.*member = std::chrono::milliseconds(std::llround(std::ceil(seconds * 1000)));
  };
}

void set_attempts(RendezvousOptions& options, const std::string& value) {
  TORCH_CHECK_VALUE(absl::SimpleAtoi(value, &options.keep_alive_max_attempt) && options.keep_alive_max_attempt >= 2 &&
                        options.keep_alive_max_attempt <= 1000,
                    "must be a number from 2 to 1000");
}

void set_is_host(RendezvousOptions& options, const std::string& value) {
  bool is_host = false;
  TORCH_CHECK_VALUE(absl::SimpleAtob(value, &is_host), "must be true or false");
  options.is_host = is_host;
}

void check_store_type(RendezvousOptions&, const std::string& value) {
  TORCH_CHECK_VALUE(value == "tcp", "must be tcp, the only supported store");
}

const std::map<std::string, Setter>& setters() {
  static const std::map<std::string, Setter> all = {
      {"close_timeout", time(&RendezvousOptions::close_timeout)},
      {"heartbeat_timeout", time(&RendezvousOptions::heartbeat_timeout)},
      {"is_host", set_is_host},
      {"join_timeout", time(&RendezvousOptions::join_timeout)},
      {"keep_alive_interval", time(&RendezvousOptions::keep_alive_interval)},
      {"keep_alive_max_attempt", set_attempts},
      {"last_call_timeout", time(&RendezvousOptions::last_call_timeout)},
      {"read_timeout", time(&RendezvousOptions::read_timeout)},
      {"store_type", check_store_type}};
  return all;
}

std::string known_keys() {
  return absl::StrJoin(setters(), ", ", [](std::string* out, const auto& entry) { out->append(entry.first); });
}

void apply(const std::string& entry, const std::string& backend, RendezvousOptions& options) {
  const std::vector<std::string> parts = absl::StrSplit(entry, absl::MaxSplits('=', 1));
  const auto found = setters().find(parts.front());
  TORCH_CHECK_VALUE(parts.size() == 2, "--rdzv_conf: '", entry, "' is not KEY=VALUE");
  TORCH_CHECK_VALUE(found != setters().end(), "--rdzv_conf: unknown key '", parts.front(), "'; known: ", known_keys());
  TORCH_CHECK_VALUE(parts.front() != "last_call_timeout" || backend == kElasticBackend, "--rdzv_conf: ", parts.front(),
                    " has no effect with --rdzv_backend=", backend);
  try {
    found->second(options, parts.back());
  } catch (const c10::ValueError& error) {
    TORCH_CHECK_VALUE(false, "--rdzv_conf: ", entry, ": ", error.what_without_backtrace());
  }
  TORCH_CHECK_VALUE(!options.is_host.value_or(false) || backend == kElasticBackend, "--rdzv_conf: ", entry,
                    ": with --rdzv_backend=", backend,
                    " node 0 is the host; is_host=false lets it join a job that runs");
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
  const std::optional<network::HostAndPort> read = network::parse_host_and_port(text);
  // Without brackets, the port of an IPv6 address would be ambiguous.
  const bool is_good = read && (text.starts_with('[') || read->host.find(':') == std::string::npos);
  TORCH_CHECK_VALUE(is_good, "--rdzv_endpoint=", text, ": must be HOST:PORT, with an IPv6 address in brackets");
  return {.host = read->host, .port = read->port.value_or(default_port)};
}

Endpoint parse_master(const std::string& address, std::optional<int64_t> port, int64_t default_port) {
  const std::optional<network::HostAndPort> read = network::parse_host_and_port(address);
  TORCH_CHECK_VALUE(read.has_value(), "--master_addr=", address, ": must be a name or an address");
  TORCH_CHECK_VALUE(!read->port || !port || read->port == port, "--master_addr=", address,
                    " contradicts --master_port=", port.value_or(0));
  return {.host = read->host, .port = read->port.value_or(port.value_or(default_port))};
}

RendezvousOptions parse_rendezvous_options(const std::string& text, const std::string& backend) {
  RendezvousOptions options;
  for (const std::string& entry : std::vector<std::string>(absl::StrSplit(text, ',', absl::SkipEmpty()))) {
    apply(entry, backend, options);
  }
  return options;
}

}  // namespace narrowcast::launcher

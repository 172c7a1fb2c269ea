#include "trainer/base/network/addresses.h"

#include <c10/util/Exception.h>
#include <c10/util/StringUtil.h>
#include <ifaddrs.h>
#include <net/if.h>
#include <netdb.h>
#include <netinet/in.h>
#include <sys/socket.h>

#include <algorithm>
#include <array>
#include <charconv>
#include <cstring>
#include <functional>
#include <memory>
#include <string>
#include <system_error>

#include "ops/common/file_descriptor.h"

namespace narrowcast::network {
namespace {

constexpr int64_t kAnyPort = 9;  // port of the discard service

std::string as_number(const sockaddr& address, socklen_t length) {
  std::array<char, NI_MAXHOST> text{};
  const int error = getnameinfo(&address, length, text.data(), text.size(), nullptr, 0, NI_NUMERICHOST);
  return error == 0 ? text.data() : "";
}

// Length of an internet address; 0 for other families.
socklen_t length_of(const sockaddr* address) {
  if (address == nullptr) {
    return 0;
  }
  const bool v6 = address->sa_family == AF_INET6;
  return v6 ? sizeof(sockaddr_in6) : address->sa_family == AF_INET ? sizeof(sockaddr_in) : 0;
}

// Such an address means something only together with an interface.
bool is_link_local(const std::string& address) { return address.starts_with("fe80:"); }

// Connecting a datagram socket sends nothing, but makes the kernel choose the route.
std::string source_address(const SocketAddress& target) {
  const FileDescriptor descriptor(socket(target.get()->sa_family, SOCK_DGRAM | SOCK_CLOEXEC, 0));
  SocketAddress own;
  own.length = sizeof(own.bytes);
  const bool known = descriptor.is_open() && connect(descriptor.get(), target.get(), target.length) == 0 &&
                     getsockname(descriptor.get(), own.get(), &own.length) == 0;
  return known ? as_number(*own.get(), own.length) : "";
}

// Calls `visit` with the name and an address of each interface that is up, in the machine's order.
void for_each_own_address(const std::function<void(const std::string& interface, const std::string& address)>& visit) {
  ifaddrs* first = nullptr;
  if (getifaddrs(&first) != 0) {
    return;
  }
  const std::unique_ptr<ifaddrs, void (*)(ifaddrs*)> interfaces(first, freeifaddrs);
  for (const ifaddrs* entry = first; entry != nullptr; entry = entry->ifa_next) {
    const socklen_t length = length_of(entry->ifa_addr);
    if (length != 0 && (entry->ifa_flags & IFF_UP) != 0) {
      visit(entry->ifa_name, as_number(*entry->ifa_addr, length));
    }
  }
}

}  // namespace

AddressList find_addresses(const std::string& host, int& error) {
  addrinfo hints{};
  hints.ai_socktype = SOCK_STREAM;
  addrinfo* found = nullptr;
  error = getaddrinfo(host.c_str(), nullptr, &hints, &found);
  return {error == 0 ? found : nullptr, [](addrinfo* list) {
            if (list != nullptr) {
              freeaddrinfo(list);
            }
          }};
}

SocketAddress::SocketAddress(const addrinfo& address, int64_t port) : length(address.ai_addrlen) {
  std::memcpy(&bytes, address.ai_addr, std::min<size_t>(length, sizeof(bytes)));
  const auto number = htons(static_cast<uint16_t>(port));
  if (bytes.ss_family == AF_INET6) {
    reinterpret_cast<sockaddr_in6&>(bytes).sin6_port = number;
  } else {
    reinterpret_cast<sockaddr_in&>(bytes).sin_port = number;
  }
}

int64_t SocketAddress::port() const {
  return ntohs(bytes.ss_family == AF_INET6 ? reinterpret_cast<const sockaddr_in6&>(bytes).sin6_port
                                           : reinterpret_cast<const sockaddr_in&>(bytes).sin_port);
}

bool SocketAddress::means_all() const {
  if (bytes.ss_family == AF_INET6) {
    return IN6_IS_ADDR_UNSPECIFIED(&reinterpret_cast<const sockaddr_in6&>(bytes).sin6_addr);
  }
  return reinterpret_cast<const sockaddr_in&>(bytes).sin_addr.s_addr == htonl(INADDR_ANY);
}

bool means_all(const AddressList& addresses) {
  for (const addrinfo* entry = addresses.get(); entry != nullptr; entry = entry->ai_next) {
    if (SocketAddress(*entry, 0).means_all()) {
      return true;
    }
  }
  return false;
}

std::vector<std::string> addresses_of_host(const std::string& host) {
  std::vector<std::string> addresses;
  int error = 0;
  const AddressList found = find_addresses(host, error);
  for (const addrinfo* entry = found.get(); entry != nullptr; entry = entry->ai_next) {
    addresses.push_back(as_number(*entry->ai_addr, entry->ai_addrlen));
  }
  return addresses;
}

std::vector<std::string> addresses_of_interface(const std::string& interface) {
  TORCH_CHECK_VALUE(if_nametoindex(interface.c_str()) != 0, "interface '", interface, "' does not exist");
  std::vector<std::string> addresses;
  for_each_own_address([&](const std::string& name, const std::string& address) {
    if (name == interface && !is_link_local(address)) {
      addresses.push_back(address);
    }
  });
  TORCH_CHECK_VALUE(!addresses.empty(), "interface '", interface, "' is down or has no internet address");
  std::stable_partition(addresses.begin(), addresses.end(),
                        [](const std::string& address) { return address.find(':') == std::string::npos; });
  return addresses;
}

std::vector<std::string> own_addresses() {
  std::vector<std::string> addresses;
  for_each_own_address([&](const std::string& /*interface*/, const std::string& address) {
    if (!is_loopback_address(address) && !is_link_local(address)) {
      addresses.push_back(address);
    }
  });
  return addresses;
}

bool is_loopback_address(const std::string& address) { return address == "::1" || address.starts_with("127."); }

bool names_loopback(const std::string& host) { return host == "localhost" || is_loopback_address(host); }

bool is_own_address(const std::string& host) {
  std::vector<std::string> own;
  for_each_own_address([&](const std::string& /*interface*/, const std::string& address) { own.push_back(address); });
  const std::vector<std::string> addresses = addresses_of_host(host);
  return std::any_of(addresses.begin(), addresses.end(), [&](const std::string& address) {
    return is_loopback_address(address) || std::find(own.begin(), own.end(), address) != own.end();
  });
}

std::optional<HostAndPort> parse_host_and_port(const std::string& text) {
  const bool in_brackets = text.starts_with('[');
  const size_t bracket = text.find(']');
  const bool is_number = !in_brackets && std::ranges::count(text, ':') > 1;  // IPv6
  if (in_brackets && bracket == std::string::npos) {
    return std::nullopt;
  }
  const size_t end = in_brackets ? bracket + 1 : is_number ? text.size() : std::min(text.find(':'), text.size());
  HostAndPort found{.host = in_brackets ? text.substr(1, bracket - 1) : text.substr(0, end)};
  int64_t port = 0;
  const std::string rest = text.substr(end);
  if (!rest.empty()) {
    const char* const end_of_text = rest.data() + rest.size();
    const auto number = std::from_chars(rest.data() + 1, end_of_text, port);
    const bool is_port = rest.front() == ':' && number.ec == std::errc() && number.ptr == end_of_text;
    if (!is_port || port < 0 || port > kLargestPort) {
      return std::nullopt;
    }
    found.port = port;
  }
  return found.host.empty() ? std::nullopt : std::optional(found);
}

std::string host_and_port(const std::string& host, int64_t port) {
  return host.find(':') == std::string::npos ? c10::str(host, ":", port) : c10::str("[", host, "]:", port);
}

bool has_only_loopback() {
  bool has_any = false;
  bool has_others = false;
  for_each_own_address([&](const std::string& /*interface*/, const std::string& address) {
    has_any = true;
    has_others = has_others || !is_loopback_address(address);
  });
  return has_any && !has_others;
}

std::string address_towards(const std::string& host) {
  int error = 0;
  const AddressList targets = find_addresses(host, error);
  for (const addrinfo* target = targets.get(); target != nullptr; target = target->ai_next) {
    std::string address = source_address({*target, kAnyPort});
    if (!address.empty()) {
      return address;
    }
  }
  return "";
}

}  // namespace narrowcast::network

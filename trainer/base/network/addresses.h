// What a host's name or number means to the network, which addresses this machine has, and which of them a job uses.
#pragma once

#include <netdb.h>

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <vector>

namespace narrowcast::network {

// Where processes of one machine reach each other, and nobody else does.
inline constexpr const char* kLoopback = "127.0.0.1";

// The largest port number of TCP.
inline constexpr int64_t kLargestPort = 65535;

// Owns what getaddrinfo found; null if it found nothing.
using AddressList = std::unique_ptr<addrinfo, void (*)(addrinfo*)>;

// The TCP addresses of `host`; `error`, a code for gai_strerror, is set if there are none.
AddressList find_addresses(const std::string& host, int& error);

// One address with a port, as bind and connect take it.
struct SocketAddress {
  sockaddr_storage bytes{};
  socklen_t length = 0;

  SocketAddress() = default;
  // The same address with another port.
  SocketAddress(const addrinfo& address, int64_t port);

  sockaddr* get() { return reinterpret_cast<sockaddr*>(&bytes); }
  const sockaddr* get() const { return reinterpret_cast<const sockaddr*>(&bytes); }
  int64_t port() const;
  // 0.0.0.0 or ::
  bool means_all() const;
};

// Whether one of `addresses` is 0.0.0.0 or ::
bool means_all(const AddressList& addresses);

// The addresses, as numbers, of a host's name or address; none if it cannot be resolved (now).
std::vector<std::string> addresses_of_host(const std::string& host);

// The addresses, as numbers, that a network interface of this machine has, e.g. of "eth0": IPv4 first, link-local
// ones left out. Throws c10::ValueError if there is no such interface or it has no address.
std::vector<std::string> addresses_of_interface(const std::string& interface);

// Whether `address`, a number, is one of 127.0.0.0/8 or ::1.
bool is_loopback_address(const std::string& address);

// Whether `host`, a name or a number, is a loopback address by how it is written; no name is resolved.
bool names_loopback(const std::string& host);

// Whether `host`, a name or a number, is this machine: one of its addresses is a loopback address, or an interface of
// this machine that is up has it. False of 0.0.0.0 and ::, which are no machine's addresses, and of a name that cannot
// be resolved.
bool is_own_address(const std::string& host);

// A host and perhaps a port, as users write them.
struct HostAndPort {
  std::string host;  // without brackets
  std::optional<int64_t> port = {};
};

// Reads "HOST", "HOST:PORT", "[IPV6]", "[IPV6]:PORT" or an IPv6 address without brackets, which has no port. Returns
// nothing for other texts, such as an empty host or a port that is not from 0 to 65535.
std::optional<HostAndPort> parse_host_and_port(const std::string& text);

// "HOST:PORT", or "[HOST]:PORT" for an IPv6 address.
std::string host_and_port(const std::string& host, int64_t port);

// Whether there is no network interface but the loopback: nobody beyond this machine, or the part of it that has this
// network, is in reach.
bool has_only_loopback();

// The address from which this machine reaches `host`; empty if the name cannot be resolved or there is no route.
std::string address_towards(const std::string& host);

}  // namespace narrowcast::network

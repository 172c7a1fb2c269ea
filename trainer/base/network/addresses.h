// Resolves hosts' names and numbers, and finds this machine's addresses and the one that a job uses.
#pragma once

#include <netdb.h>

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <vector>

namespace narrowcast::network {

// The address at which only processes of one machine reach each other.
inline constexpr const char* kLoopback = "127.0.0.1";

// The largest port number of TCP.
inline constexpr int64_t kLargestPort = 65535;

// Owns getaddrinfo's result; null if nothing was found.
using AddressList = std::unique_ptr<addrinfo, void (*)(addrinfo*)>;

// The TCP addresses of `host`. If it has no address, `error` is set to a code for gai_strerror.
AddressList find_addresses(const std::string& host, int& error);

// An address with a port, in the form that bind and connect take.
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

// The addresses, as numbers, of a host's name or address; empty if it cannot be resolved now.
std::vector<std::string> addresses_of_host(const std::string& host);

// The addresses, as numbers, of a network interface of this machine, e.g. of "eth0". IPv4 addresses come first;
// link-local ones are left out. Throws c10::ValueError if there is no such interface or it has no address.
std::vector<std::string> addresses_of_interface(const std::string& interface);

// Whether `address`, a number, is in 127.0.0.0/8 or is ::1.
bool is_loopback_address(const std::string& address);

// Whether `host`, a name or a number, is written as a loopback address; no name is resolved.
bool names_loopback(const std::string& host);

// Whether `host`, a name or a number, is this machine: one of its addresses is a loopback address, or belongs to an
// interface of this machine that is up. False for 0.0.0.0 and ::, which are not addresses of any machine, and for a
// name that cannot be resolved.
bool is_own_address(const std::string& host);

// A host with an optional port, as users write them.
struct HostAndPort {
  std::string host;  // without brackets
  std::optional<int64_t> port = {};
};

// Reads "HOST", "HOST:PORT", "[IPV6]", "[IPV6]:PORT" or an IPv6 address without brackets, which has no port. Returns
// nothing for other texts, such as an empty host or a port that is not from 0 to 65535.
std::optional<HostAndPort> parse_host_and_port(const std::string& text);

// "HOST:PORT", or "[HOST]:PORT" for an IPv6 address.
std::string host_and_port(const std::string& host, int64_t port);

// The addresses, as numbers, by which other machines may reach this one: all but loopback and link-local ones.
std::vector<std::string> own_addresses();

// Whether the loopback is the only network interface: then only this machine, or its network namespace, is in reach.
bool has_only_loopback();

// The source address of packets from this machine to `host`; empty if the name cannot be resolved or there is no route.
std::string address_towards(const std::string& host);

}  // namespace narrowcast::network

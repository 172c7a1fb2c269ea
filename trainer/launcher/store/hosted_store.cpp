#include "trainer/launcher/store/hosted_store.h"

#include <poll.h>
#include <sys/socket.h>

#include <algorithm>
#include <cerrno>
#include <cstring>

#include "ops/common/error_message.h"
#include "ops/common/file_descriptor.h"
#include "trainer/base/network/addresses.h"
#include "trainer/base/network/tcp_store.h"

namespace narrowcast::launcher {
namespace {

using Clock = std::chrono::steady_clock;

[[noreturn]] void refuse(const std::string& flag, int64_t port, int reason) {
  const std::string message = c10::str(flag, "=", port, ": cannot be used: ", std::strerror(reason));
  if (reason == EADDRINUSE) {
    throw PortInUseError({__func__, __FILE__, static_cast<uint32_t>(__LINE__)}, message);
  }
  TORCH_CHECK_VALUE(false, message);
}

// Returns 0 or an errno.
int error_of_connecting(const FileDescriptor& socket, std::chrono::milliseconds timeout) {
  pollfd entry = {socket.get(), POLLOUT, 0};
  if (poll(&entry, 1, static_cast<int>(timeout.count())) != 1) {
    return ETIMEDOUT;
  }
  int error = 0;
  socklen_t length = sizeof(error);
  return getsockopt(socket.get(), SOL_SOCKET, SO_ERROR, &error, &length) == 0 ? error : errno;
}

// If nobody listens at a port of this machine, the kernel may give the same port to the socket that connects: once in
// some 14,000 attempts. Closed as usual, it would keep the port from everybody for a minute.
bool is_connected_to_itself(const FileDescriptor& socket) {
  network::SocketAddress here;
  network::SocketAddress there;
  here.length = there.length = sizeof(here.bytes);
  return getsockname(socket.get(), here.get(), &here.length) == 0 &&
         getpeername(socket.get(), there.get(), &there.length) == 0 && here.length == there.length &&
         std::memcmp(&here.bytes, &there.bytes, here.length) == 0;
}

int connect_once(const network::SocketAddress& address, std::chrono::milliseconds timeout) {
  const FileDescriptor own(socket(address.get()->sa_family, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0));
  if (!own.is_open()) {
    return errno;
  }
  int error = connect(own.get(), address.get(), address.length) == 0 ? 0 : errno;
  error = error == EINPROGRESS ? error_of_connecting(own, timeout) : error;
  if (error == 0 && is_connected_to_itself(own)) {
    const linger at_once = {.l_onoff = 1, .l_linger = 0};
    setsockopt(own.get(), SOL_SOCKET, SO_LINGER, &at_once, sizeof(at_once));
    return ECONNREFUSED;
  }
  return error;
}

// Counts the addresses from `entry` to the end of the list.
int64_t addresses_from(const addrinfo* entry) {
  int64_t count = 0;
  for (; entry != nullptr; entry = entry->ai_next) {
    ++count;
  }
  return count;
}

network::TcpStorePtr serve(const std::string& address, const network::ListeningSocket& socket) {
  const std::string place = network::host_and_port(address, socket.port());
  std::chrono::milliseconds left = HostedStore::kPatience;
  const std::string reason = try_to_reach(address, socket.port(), left);
  TORCH_CHECK_VALUE(reason.empty(), "the job's store would be served at ", place,
                    ", but this machine cannot reach itself there: ", reason);
  try {
    network::TcpStorePtr store = network::serve_tcp_store(address, socket, HostedStore::kPatienceWithNames);
    store->setTimeout(c10d::Store::kDefaultTimeout);
    return store;
  } catch (const c10::Error& error) {
    TORCH_CHECK_VALUE(false, "the job's store cannot be served at ", place, ": ", first_line(error_message(error)));
  }
}

}  // namespace

network::ListeningSocket open_store_socket(const std::string& address, int64_t port, const EndpointFlags& flags) {
  TORCH_CHECK_VALUE(port >= 0 && port <= network::kLargestPort, flags.port, "=", port, ": must be from 0 to ",
                    network::kLargestPort);
  int error = 0;
  const network::AddressList found = network::find_addresses(address, error);
  TORCH_CHECK_VALUE(found != nullptr, flags.address, "=", address, ": ", gai_strerror(error));
  TORCH_CHECK_VALUE(!network::means_all(found), flags.address, "=", address,
                    ": means every address of this machine; give the address that the other nodes use");
  if (auto socket = network::ListeningSocket::listen_at(found, port, error)) {
    return *std::move(socket);
  }
  TORCH_CHECK_VALUE(error != EADDRNOTAVAIL, flags.address, "=", address,
                    ": not an address of this machine, where the job's store is served");
  refuse(flags.port, port, error);
}

bool nobody_listens(const std::vector<int>& errors) {
  const auto is_refusal = [](int error) { return error == ECONNREFUSED; };
  return std::ranges::any_of(errors, is_refusal) && std::ranges::all_of(errors, [&](int error) {
           return is_refusal(error) || error == ENETUNREACH || error == EADDRNOTAVAIL || error == EAFNOSUPPORT;
         });
}

std::string try_to_reach(const std::string& host, int64_t port, std::chrono::milliseconds& left) {
  return reach_each(host, port, left).reason;
}

Reached reach_each(const std::string& host, int64_t port, std::chrono::milliseconds& left) {
  int error = 0;
  const network::AddressList found = network::find_addresses(host, error);
  if (found == nullptr) {
    return {.reason = gai_strerror(error)};
  }
  const auto deadline = Clock::now() + left;
  std::vector<int> errors;
  for (const addrinfo* entry = found.get(); entry != nullptr; entry = entry->ai_next) {
    const int result = connect_once(network::SocketAddress(*entry, port), left / addresses_from(entry));
    left =
        std::max(std::chrono::milliseconds(0), std::chrono::ceil<std::chrono::milliseconds>(deadline - Clock::now()));
    if (result == 0) {
      return {};
    }
    errors.push_back(result);
  }
  // A refusal tells most: the machine is there.
  const auto refusal = std::ranges::find(errors, ECONNREFUSED);
  return {.reason = std::strerror(refusal != errors.end() ? *refusal : errors.back()),
          .is_free = nobody_listens(errors)};
}

HostedStore::HostedStore(const std::string& address, const network::ListeningSocket& socket)
    : store_(serve(address, socket)) {}

void HostedStore::forget_workers() {
  for (const std::string& key : store_->listKeys()) {
    if (!key.starts_with(kLauncherKeys)) {
      store_->deleteKey(key);
    }
  }
}

void HostedStore::forget_launchers() {
  std::vector<std::string> keys = store_->listKeys();
  std::erase_if(keys, [](const std::string& key) { return !key.starts_with(kLauncherKeys); });
  std::ranges::stable_partition(keys, [](const std::string& key) { return !key.starts_with(kMovedKeys); });
  for (const std::string& key : keys) {
    store_->deleteKey(key);
  }
}

std::shared_ptr<HostedStore> EndpointStore::serve() {
  const std::lock_guard lock(mutex_);
  if (served_ == nullptr) {
    try {
      served_ = std::make_shared<HostedStore>(address_, open_store_socket(address_, port_, flags_));
    } catch (const PortInUseError&) {
      return nullptr;
    }
  }
  return served_;
}

std::shared_ptr<HostedStore> EndpointStore::served() const {
  const std::lock_guard lock(mutex_);
  return served_;
}

}  // namespace narrowcast::launcher

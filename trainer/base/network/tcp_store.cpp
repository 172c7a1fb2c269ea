#include "trainer/base/network/tcp_store.h"

#include <c10/util/Exception.h>
#include <fcntl.h>
#include <sys/socket.h>

#include <cerrno>
#include <cstring>
#include <functional>
#include <vector>

#include "ops/common/file_descriptor.h"
#include "trainer/base/network/answering_store.h"

namespace narrowcast::network {
namespace {

constexpr int kWaitingConnections = 4096;
constexpr std::chrono::milliseconds kToGiveUpByItself{1000};  // for the error of c10d, with its reason

SocketAddress own_address(const FileDescriptor& socket) {
  SocketAddress own;
  own.length = sizeof(own.bytes);
  TORCH_CHECK(getsockname(socket.get(), own.get(), &own.length) == 0, "getsockname: ", std::strerror(errno));
  return own;
}

c10d::TCPStoreOptions store_options(int64_t port, std::chrono::milliseconds timeout) {
  c10d::TCPStoreOptions options;
  options.port = static_cast<uint16_t>(port);
  options.waitWorkers = false;
  options.timeout = timeout;
  return options;
}

}  // namespace

std::optional<ListeningSocket> ListeningSocket::listen_at(const SocketAddress& address, int& error) {
  FileDescriptor own(socket(address.get()->sa_family, SOCK_STREAM | SOCK_CLOEXEC, 0));
  const int on = 1;
  const bool listens = own.is_open() &&
                       // A port whose last connections are still closing can be taken again.
                       setsockopt(own.get(), SOL_SOCKET, SO_REUSEADDR, &on, sizeof(on)) == 0 &&
                       bind(own.get(), address.get(), address.length) == 0 &&
                       listen(own.get(), kWaitingConnections) == 0;
  error = listens ? 0 : errno;
  if (!listens) {
    return std::nullopt;
  }
  const int64_t port = own_address(own).port();
  return ListeningSocket(std::move(own), port);
}

std::optional<ListeningSocket> ListeningSocket::listen_at(const AddressList& addresses, int64_t port, int& error) {
  int reason = EADDRNOTAVAIL;
  for (const addrinfo* entry = addresses.get(); entry != nullptr; entry = entry->ai_next) {
    if (auto listening = listen_at({*entry, port}, error)) {
      return listening;
    }
    if (error == EADDRINUSE) {
      return std::nullopt;  // At another address of the host, two processes would serve it.
    }
    reason = error == EADDRNOTAVAIL ? reason : error;
  }
  error = reason;
  return std::nullopt;
}

int ListeningSocket::duplicate() const {
  const int copy = fcntl(socket_.get(), F_DUPFD_CLOEXEC, 0);
  TORCH_CHECK(copy >= 0, "fcntl: ", std::strerror(errno));
  return copy;
}

TcpStorePtr serve_tcp_store(const std::string& address, const ListeningSocket& socket,
                            std::chrono::milliseconds timeout) {
  c10d::TCPStoreOptions options = store_options(socket.port(), timeout);
  options.isServer = true;
  options.masterListenFd = socket.duplicate();
  return c10::make_intrusive<c10d::TCPStore>(address, options);
}

TcpStorePtr reach_tcp_store(const std::string& host, int64_t port, std::chrono::milliseconds timeout,
                            const std::function<bool()>& gives_up) {
  // The store's constructor waits for an answer without limit.
  const std::function<TcpStorePtr()> reach = [=] {
    return c10::make_intrusive<c10d::TCPStore>(host, store_options(port, timeout));
  };
  std::optional<TcpStorePtr> store = within(timeout + kToGiveUpByItself, reach, gives_up);
  TORCH_CHECK_WITH(DistNetworkError, store.has_value(),
                   "it does not answer as a store: another service listens there, or the process that serves it hangs");
  return *std::move(store);
}

// A get would wait for a key that does not exist. A compareSet with a value that no key has returns the stored value,
// or the given value if the key does not exist.
std::optional<std::string> value_of(c10d::Store& store, const std::string& key) {
  static const std::vector<uint8_t> probe = {'n', 'o', 'n', 'e'};
  const std::vector<uint8_t> found = store.compareSet(key, probe, probe);
  return found == probe ? std::nullopt : std::optional(std::string(found.begin(), found.end()));
}

}  // namespace narrowcast::network

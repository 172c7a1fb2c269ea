#include "trainer/base/tcp_store.h"

namespace narrowcast::network {
namespace {

c10d::TCPStoreOptions store_options(int64_t port, std::chrono::milliseconds timeout) {
  c10d::TCPStoreOptions options;
  options.port = static_cast<uint16_t>(port);
  options.waitWorkers = false;
  options.timeout = timeout;
  return options;
}

}  // namespace

TcpStorePtr serve_tcp_store(const std::string& address, const ListeningSocket& socket,
                            std::chrono::milliseconds timeout) {
  c10d::TCPStoreOptions options = store_options(socket.port(), timeout);
  options.isServer = true;
  options.masterListenFd = socket.duplicate();
  return c10::make_intrusive<c10d::TCPStore>(address, options);
}

TcpStorePtr reach_tcp_store(const std::string& host, int64_t port, std::chrono::milliseconds timeout) {
  return c10::make_intrusive<c10d::TCPStore>(host, store_options(port, timeout));
}

}  // namespace narrowcast::network

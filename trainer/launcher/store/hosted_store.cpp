#include "trainer/launcher/store/hosted_store.h"

namespace narrowcast::launcher {
namespace {

c10::intrusive_ptr<c10d::TCPStore> serve(const std::string& address, const network::ListeningSocket& socket) {
  c10d::TCPStoreOptions options;
  options.port = static_cast<uint16_t>(socket.port());
  options.isServer = true;
  options.waitWorkers = false;
  options.masterListenFd = socket.duplicate();
  return c10::make_intrusive<c10d::TCPStore>(address, options);
}

}  // namespace

HostedStore::HostedStore(const std::string& address, const network::ListeningSocket& socket)
    : store_(serve(address, socket)) {}

void HostedStore::forget_workers() {
  for (const std::string& key : store_->listKeys()) {
    if (!key.starts_with(kLauncherKeys)) {
      store_->deleteKey(key);
    }
  }
}

}  // namespace narrowcast::launcher

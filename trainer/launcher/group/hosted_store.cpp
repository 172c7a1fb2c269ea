#include "trainer/launcher/group/hosted_store.h"

#include <c10/util/Exception.h>

#include <algorithm>
#include <cstdint>
#include <utility>
#include <vector>

#include "trainer/base/job_keys.h"
#include "trainer/launcher/group/reach.h"

namespace narrowcast::launcher {
namespace {

using TcpStorePtr = c10::intrusive_ptr<c10d::TCPStore>;

// c10d serves, and is its own first client.
TcpStorePtr serve_and_connect(const std::string& address, const network::ListeningSocket& socket,
                              std::chrono::milliseconds patience) {
  c10d::TCPStoreOptions options;
  options.port = static_cast<uint16_t>(socket.port());
  options.isServer = true;
  options.waitWorkers = false;
  options.masterListenFd = socket.duplicate();
  const auto later = std::exchange(options.timeout, std::max(std::chrono::milliseconds(1), patience));
  TcpStorePtr store = c10::make_intrusive<c10d::TCPStore>(address, options);
  store->setTimeout(later);
  return store;
}

TcpStorePtr serve(const std::string& address, const network::ListeningSocket& socket) {
  const std::string place = c10::str(address, ":", socket.port());
  std::chrono::milliseconds left = HostedStore::kPatience;
  const std::string reason = try_to_reach(address, socket.port(), left);
  TORCH_CHECK_VALUE(reason.empty(), "the job's store would be served at ", place,
                    ", but this machine cannot reach itself there: ", reason);
  try {
    return serve_and_connect(address, socket, left);
  } catch (const c10::Error& error) {
    const std::string text = error.what_without_backtrace();
    TORCH_CHECK_VALUE(false, "the job's store cannot be served at ", place, ": ", text.substr(0, text.find('\n')));
  }
}

}  // namespace

void tell_ended_rank(c10d::Store& store, const std::string& run_id, int64_t rank) {
  const std::string text = std::to_string(rank);
  store.set(rendezvous::job_prefix(run_id) + "/" + rendezvous::kEndedRank,
            std::vector<uint8_t>(text.begin(), text.end()));
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

}  // namespace narrowcast::launcher

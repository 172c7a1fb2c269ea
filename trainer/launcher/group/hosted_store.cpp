#include "trainer/launcher/group/hosted_store.h"

#include <c10/util/Exception.h>

#include <algorithm>
#include <vector>

#include "ops/error_message.h"
#include "trainer/base/job_keys.h"
#include "trainer/launcher/group/reach.h"

namespace narrowcast::launcher {
namespace {

network::TcpStorePtr serve(const std::string& address, const network::ListeningSocket& socket) {
  const std::string place = c10::str(address, ":", socket.port());
  std::chrono::milliseconds left = HostedStore::kPatience;
  const std::string reason = try_to_reach(address, socket.port(), left);
  TORCH_CHECK_VALUE(reason.empty(), "the job's store would be served at ", place,
                    ", but this machine cannot reach itself there: ", reason);
  try {
    network::TcpStorePtr store =
        network::serve_tcp_store(address, socket, std::max(std::chrono::milliseconds(1), left));
    store->setTimeout(c10d::Store::kDefaultTimeout);
    return store;
  } catch (const c10::Error& error) {
    TORCH_CHECK_VALUE(false, "the job's store cannot be served at ", place, ": ", first_line(error_message(error)));
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

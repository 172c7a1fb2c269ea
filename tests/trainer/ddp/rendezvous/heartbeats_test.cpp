#include "trainer/ddp/rendezvous/heartbeats.h"

#include <gtest/gtest.h>

#include <stdexcept>
#include <string>

#include "tests/support/moving_store.h"
#include "tests/support/patience.h"

namespace narrowcast::rendezvous {
namespace {

using namespace std::chrono_literals;

// Three nodes with a rank each, and a launcher's store.
class HeartbeatsTest : public ::testing::Test {
 protected:
  std::string sign_of(int64_t node) const { return testing::job_key(signs_key(node, 0)); }
  void wait_for(const std::string& key) { store_->wait({key}, testing::kPatience); }
  // Returns when that number has grown.
  void wait_for_more(const std::string& key) {
    const int64_t before = store_->add(key, 0);
    while (store_->add(key, 0) == before) testing::pause_between_looks();
  }

  const testing::StoreFileOfTest file_;
  network::TcpStorePtr store_ = testing::serve_job("0 1:1,2:1,3:1");
};

TEST_F(HeartbeatsTest, AProcessThatEndsIsNotSilent) {
  {
    const Heartbeats heartbeats(file_.env(2, store_->getPort()), 1ms);
    wait_for_more(sign_of(2));
  }
  while (store_->check({sign_of(2)})) testing::pause_between_looks();
  try {
    const Heartbeats heartbeats(file_.env(2, store_->getPort()), 1ms);
    wait_for_more(sign_of(2));
    throw std::runtime_error("test");
  } catch (const std::runtime_error&) {
    EXPECT_TRUE(store_->check({sign_of(2)})) << "it should end soon, and another one takes its place";
  }
}

TEST_F(HeartbeatsTest, SignsFollowTheStore) {
  const Heartbeats heartbeats(file_.env(2, store_->getPort()), 1ms);
  wait_for(sign_of(2));
  const network::TcpStorePtr moved = testing::serve_job("1 2:1,3:1");
  file_.tell(moved->getPort());
  moved->wait({sign_of(2)}, testing::kPatience);
}

TEST_F(HeartbeatsTest, SignsOutliveABrokenConnection) {
  const network::ListeningSocket socket = testing::loopback_socket();
  network::TcpStorePtr store = testing::serve_job(socket, "0 1:1,2:1");
  WorkerEnv env = file_.env(2, socket.port());
  env.store_file.clear();
  const Heartbeats heartbeats(env, 1ms);
  store->wait({sign_of(2)}, testing::kPatience);
  store.reset();
  store = testing::serve_job(socket, "0 1:1,2:1");
  store->wait({sign_of(2)}, testing::kPatience);
}

}  // namespace
}  // namespace narrowcast::rendezvous

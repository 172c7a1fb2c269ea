#include "trainer/launcher/rendezvous/find_store.h"

#include <gtest/gtest.h>

#include <chrono>
#include <cstdint>
#include <memory>
#include <optional>
#include <thread>

#include "tests/support/loopback_socket.h"
#include "tests/support/patience.h"

namespace narrowcast::launcher {
namespace {

using std::chrono::milliseconds;

class FindStoreTest : public ::testing::Test {
 protected:
  FoundStore find(int64_t port, std::shared_ptr<EndpointStore> own = {}) {
    return find_store({.place = {.host = "127.0.0.1", .port = port},
                       .to_listen = testing::kPatience,
                       .to_answer = testing::kPatience,
                       .pauses = [this] { return !has_ended; },
                       .ends = [this] { return ++questions > 2 && has_ended; },
                       .own = std::move(own)});
  }

  bool has_ended = false;
  int64_t questions = 0;
};

// The listener's kernel accepts connections, but nobody answers.
TEST_F(FindStoreTest, EndsWhileAListenerDoesNotAnswer) {
  const network::ListeningSocket silent = testing::loopback_socket();
  has_ended = true;
  EXPECT_EQ(find(silent.port()).store, nullptr);
  EXPECT_EQ(questions, 3);
}

TEST_F(FindStoreTest, ServesOnceTheListenerHasGone) {
  std::optional<network::ListeningSocket> silent = testing::loopback_socket();
  const int64_t port = silent->port();
  std::jthread leaver([&] {
    std::this_thread::sleep_for(milliseconds(300));
    silent.reset();
  });
  const FoundStore found = find(port, std::make_shared<EndpointStore>("127.0.0.1", port, EndpointFlags{}));
  EXPECT_NE(found.hosted, nullptr);
  EXPECT_EQ(found.store, found.hosted->store());
}

}  // namespace
}  // namespace narrowcast::launcher

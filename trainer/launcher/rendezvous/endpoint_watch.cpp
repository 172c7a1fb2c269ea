#include "trainer/launcher/rendezvous/endpoint_watch.h"

#include <chrono>
#include <exception>
#include <optional>
#include <utility>

#include "trainer/base/network/addresses.h"
#include "trainer/base/network/tcp_store.h"
#include "trainer/launcher/store/hosted_store.h"
#include "trainer/launcher/store/store_member.h"

namespace narrowcast::launcher {
namespace {

constexpr std::chrono::milliseconds kBetweenEndpointLooks{1000};
constexpr std::chrono::milliseconds kPatienceWithTheEndpoint{1000};

}  // namespace

// The thread and its owner share it.
struct EndpointWatch::State {
  explicit State(MovedJob moved) : job(std::move(moved)) {}

  void run() {
    std::unique_lock lock(mutex);
    while (!changed.wait_for(lock, kBetweenEndpointLooks, [this] { return stop; })) {
      lock.unlock();
      for (const std::string& place : job.places) {
        look(place);
      }
      lock.lock();
    }
    ended = true;
    changed.notify_all();
  }

  // Nobody listens there, or another program does, or its store ends just now: it is looked at again.
  void look(const std::string& place) const {
    const std::optional<network::HostAndPort> read = network::parse_host_and_port(place);
    std::chrono::milliseconds left = kPatienceWithTheEndpoint;
    if (place == job.store || !read || !try_to_reach(read->host, read->port.value_or(0), left).empty()) {
      return;
    }
    try {
      StoreMember other(network::reach_tcp_store(read->host, *read->port, kPatienceWithTheEndpoint), job.seal);
      if (other.awaits_first_round()) {
        other.announce_move(job.store);
      }
    } catch (const std::exception&) {
      return;
    }
  }

  const MovedJob job;
  std::mutex mutex;
  std::condition_variable changed;
  bool stop = false;
  bool ended = false;
};

EndpointWatch::EndpointWatch(MovedJob job)
    : state_(std::make_shared<State>(std::move(job))), thread_([state = state_] { state->run(); }) {}

EndpointWatch::~EndpointWatch() {
  std::unique_lock lock(state_->mutex);
  state_->stop = true;
  state_->changed.notify_all();
  const bool has_ended = state_->changed.wait_for(lock, kPatienceWithTheEndpoint, [this] { return state_->ended; });
  lock.unlock();
  if (has_ended) {
    thread_.join();
  } else {
    thread_.detach();
  }
}

}  // namespace narrowcast::launcher

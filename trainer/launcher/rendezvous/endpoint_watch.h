// Leads launchers that come to the job's endpoint to the launcher that took over from the host there.
#pragma once

#include <condition_variable>
#include <cstdint>
#include <memory>
#include <mutex>
#include <string>
#include <thread>

#include "trainer/launcher/store/sealed_entries.h"

namespace narrowcast::launcher {

// The endpoint, and where the job runs.
struct MovedJob {
  std::string host;  // of the endpoint
  int64_t port = 0;
  std::string store;  // "HOST:PORT"
  JobSeal seal = {};
};

// During its lifetime, looks each second whether a launcher serves a store at the endpoint, and tells it there. Whoever
// starts the launchers again, starts them with the same endpoint: without this, they would begin a second training.
class EndpointWatch {
 public:
  explicit EndpointWatch(MovedJob job);
  EndpointWatch(const EndpointWatch&) = delete;
  EndpointWatch& operator=(const EndpointWatch&) = delete;
  // Stops the thread. A thread that hangs in a request is left behind, and ends with the process.
  ~EndpointWatch();

 private:
  struct State;
  std::shared_ptr<State> state_;
  std::thread thread_;
};

}  // namespace narrowcast::launcher

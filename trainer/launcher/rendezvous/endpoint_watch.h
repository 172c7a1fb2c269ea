// Leads launchers that come where the store was served before to the launcher that took over.
#pragma once

#include <condition_variable>
#include <memory>
#include <mutex>
#include <string>
#include <thread>
#include <vector>

#include "trainer/launcher/store/sealed_entries.h"

namespace narrowcast::launcher {

// Where launchers may come, and where the job runs.
struct MovedJob {
  std::vector<std::string> places;  // Decision::places
  std::string store;                // "HOST:PORT"; it may be one of `places`
  JobSeal seal = {};
};

// During its lifetime, looks each second whether a launcher serves another store at one of the places, and tells it
// there. Launchers that are started again have the same endpoint, or the printed address of a store. Without this, they
// would begin a second training. Launchers of a job with another --rdzv_id are not led away.
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

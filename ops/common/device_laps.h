// Times of work on a device.
#pragma once

#include <c10/core/Device.h>
#include <c10/core/Event.h>
#include <c10/core/impl/VirtualGuardImpl.h>

#include <chrono>
#include <cstddef>
#include <utility>
#include <vector>

namespace narrowcast {

// Points in time and the intervals between them. On the CPU, where work is done when a call returns, they are read from
// the clock. On devices that enqueue work on streams, they are events. For one thread.
class DeviceLaps {
 public:
  explicit DeviceLaps(at::Device device) : device_(device) {}

  // Marks a point: on the CPU, now; else the point at which the work enqueued so far on the device's current stream is
  // done. The host does not wait.
  void mark() {
    if (device_.is_cpu()) {
      times_.push_back(Clock::now());
      return;
    }
    events_.emplace_back(device_.type(), c10::EventFlag::BACKEND_DEFAULT);
    events_.back().record(c10::impl::VirtualGuardImpl(device_.type()).getStream(device_));
  }

  // Waits until the last mark is reached. Returns the seconds from each mark to the next, and forgets all marks.
  std::vector<double> take() { return device_.is_cpu() ? between_times() : between_events(); }

 private:
  using Clock = std::chrono::steady_clock;

  std::vector<double> between_times() {
    const auto times = std::exchange(times_, {});
    std::vector<double> seconds;
    for (size_t i = 1; i < times.size(); ++i) {
      seconds.push_back(std::chrono::duration<double>(times[i] - times[i - 1]).count());
    }
    return seconds;
  }

  std::vector<double> between_events() {
    const auto events = std::exchange(events_, {});
    std::vector<double> seconds;
    for (size_t i = 1; i < events.size(); ++i) {
      events[i].synchronize();
      seconds.push_back(1e-3 * events[i - 1].elapsedTime(events[i]));  // elapsedTime is in milliseconds.
    }
    return seconds;
  }

  const at::Device device_;
  std::vector<Clock::time_point> times_;
  std::vector<c10::Event> events_;
};

}  // namespace narrowcast

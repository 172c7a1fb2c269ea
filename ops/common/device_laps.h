// Times of what is done on a device.
#pragma once

#include <c10/core/Device.h>
#include <c10/core/Event.h>
#include <c10/core/impl/VirtualGuardImpl.h>

#include <chrono>
#include <cstddef>
#include <utility>
#include <vector>

namespace narrowcast {

// Points in time, and what lies between them: by the clock on the CPU, whose work is done when it returns, and by
// events where work is enqueued on streams. For one thread.
class DeviceLaps {
 public:
  explicit DeviceLaps(at::Device device) : device_(device) {}

  // Marks a point: on the CPU this one, else the one at which all is done that the current stream of the device has so
  // far, before what it is given next. The host waits for nothing.
  void mark() {
    if (device_.is_cpu()) {
      times_.push_back(Clock::now());
      return;
    }
    events_.emplace_back(device_.type(), c10::EventFlag::BACKEND_DEFAULT);
    events_.back().record(c10::impl::VirtualGuardImpl(device_.type()).getStream(device_));
  }

  // Waits until the last mark is reached. Seconds from each mark to the next, which all are forgotten.
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
      seconds.push_back(1e-3 * events[i - 1].elapsedTime(events[i]));  // That is in milliseconds.
    }
    return seconds;
  }

  const at::Device device_;
  std::vector<Clock::time_point> times_;
  std::vector<c10::Event> events_;
};

}  // namespace narrowcast

#include "hooks/table/exchange_watch.h"

#include <c10/core/Event.h>
#include <c10/core/impl/VirtualGuardImpl.h>

#include <algorithm>
#include <cmath>
#include <deque>
#include <mutex>
#include <optional>
#include <utility>
#include <vector>

namespace narrowcast::hooks {
namespace {

constexpr double kWithinNoise = 0.1;  // Share of the predicted time; smaller differences are noise.
constexpr double kShareOfStep = 0.5;  // A stretch must be at least this share of a predicted step.

// All-reduces of a step, one of which is in flight at any time.
struct Stretch {
  PredictedExchanges predicted;
  double seconds = 0;
};

// The least factor that was seen.
class LeastFactor {
 public:
  void add(const Stretch& stretch, const PredictedExchanges& step) {
    if (stretch.predicted.sent > 0 && stretch.predicted.seconds >= kShareOfStep * step.seconds) {
      least_ = std::min(least_, stretch.predicted.link_factor(stretch.seconds));
    }
  }

  double take() { return std::exchange(least_, ExchangeWatch::kNothingSeen); }

 private:
  double least_ = ExchangeWatch::kNothingSeen;
};

class ClockWatch final : public ExchangeWatch {
 public:
  explicit ClockWatch(std::function<double()> now) : now_(std::move(now)) {}

  int64_t begin(const PredictedExchanges& predicted, at::Device /*device*/) override {
    const std::lock_guard<std::mutex> lock(mutex_);
    if (in_flight_++ == 0) {
      stretch_ = {};
      began_ = now_();
    }
    stretch_.predicted += predicted;
    return 0;  // end() does not depend on it.
  }

  void end(int64_t /*exchange*/) override {
    const std::lock_guard<std::mutex> lock(mutex_);
    if (--in_flight_ == 0) {
      stretch_.seconds = now_() - began_;
    }
  }

  void give_up(int64_t /*exchange*/) override {
    const std::lock_guard<std::mutex> lock(mutex_);
    --in_flight_;
    stretch_ = {};
  }

  void end_step(const PredictedExchanges& step) override {
    const std::lock_guard<std::mutex> lock(mutex_);
    if (in_flight_ == 0) {
      least_.add(stretch_, step);
    }
  }

  double take_least() override {
    const std::lock_guard<std::mutex> lock(mutex_);
    return least_.take();
  }

 private:
  const std::function<double()> now_;
  std::mutex mutex_;
  int64_t in_flight_ = 0;
  double began_ = 0;
  Stretch stretch_;  // The last one.
  LeastFactor least_;
};

class StreamWatch final : public ExchangeWatch {
 public:
  explicit StreamWatch(at::Device device) : device_(device) {}

  int64_t begin(const PredictedExchanges& predicted, at::Device device) override {
    const std::lock_guard<std::mutex> lock(mutex_);
    const int64_t number = next_++;
    if (device == device_) {
      step_.push_back({.number = number, .predicted = predicted, .begin = recorded(), .end = std::nullopt});
    } else {
      is_elsewhere_ = true;
    }
    return number;
  }

  // An all-reduce of a pass that failed may end in a later step, which does not know it.
  void end(int64_t exchange) override {
    const std::lock_guard<std::mutex> lock(mutex_);
    const auto found = std::ranges::find(step_, exchange, &Exchange::number);
    if (found != step_.end()) found->end = recorded();
  }

  void give_up(int64_t /*exchange*/) override {}  // A step with an all-reduce that has no end does not count.

  void end_step(const PredictedExchanges& step) override {
    const std::lock_guard<std::mutex> lock(mutex_);
    std::vector<Exchange> exchanges = std::exchange(step_, {});
    const bool is_elsewhere = std::exchange(is_elsewhere_, false);
    const bool all_ended = std::ranges::all_of(exchanges, [](const Exchange& one) { return one.end.has_value(); });
    if (!exchanges.empty() && all_ended && !is_elsewhere) {
      steps_.push_back({std::move(exchanges), step});
    }
    while (!steps_.empty() && steps_.front().is_reached()) {
      least_.add(steps_.front().last_stretch(), steps_.front().predicted);
      steps_.pop_front();
    }
  }

  double take_least() override {
    const std::lock_guard<std::mutex> lock(mutex_);
    steps_.clear();
    return least_.take();
  }

 private:
  struct Exchange {
    int64_t number;
    PredictedExchanges predicted;
    c10::Event begin;
    std::optional<c10::Event> end;
  };

  struct Step {
    std::vector<Exchange> exchanges;
    PredictedExchanges predicted;

    bool is_reached() const {
      return std::ranges::all_of(exchanges, [](const Exchange& one) { return one.end->query(); });
    }

    // Begins with the last all-reduce before which nothing was in flight.
    Stretch last_stretch() const {
      const c10::Event& origin = exchanges.front().begin;
      Stretch stretch;
      double begin = 0;
      double end = -1;  // The first all-reduce begins at 0.
      for (const Exchange& one : exchanges) {
        const double its_begin = seconds(origin, one.begin);
        if (its_begin > end) {
          stretch.predicted = {};
          begin = its_begin;
        }
        stretch.predicted += one.predicted;
        end = std::max(end, seconds(origin, *one.end));
      }
      stretch.seconds = end - begin;
      return stretch;
    }

    static double seconds(const c10::Event& first, const c10::Event& second) {
      return &first == &second ? 0 : 1e-3 * first.elapsedTime(second);  // elapsedTime is in milliseconds.
    }
  };

  c10::Event recorded() const {
    c10::Event event(device_.type(), c10::EventFlag::BACKEND_DEFAULT);
    event.record(c10::impl::VirtualGuardImpl(device_.type()).getStream(device_));
    return event;
  }

  const at::Device device_;
  std::mutex mutex_;
  int64_t next_ = 0;            // Number of the next all-reduce.
  bool is_elsewhere_ = false;   // Whether a bucket of the present step is on another device.
  std::vector<Exchange> step_;  // Those of the present step.
  std::deque<Step> steps_;      // Ended, but the device may not have reached all of their events.
  LeastFactor least_;
};

}  // namespace

PredictedExchanges& PredictedExchanges::operator+=(const PredictedExchanges& more) {
  seconds += more.seconds;
  sent += more.sent;
  count += more.count;
  return *this;
}

double PredictedExchanges::link_factor(double took) const {
  if (std::abs(took - seconds) < kWithinNoise * seconds) {
    return 1;
  }
  const double rest = seconds - sent;
  if (count == 1 && took <= rest) {
    return 1;
  }
  const double least = std::max(0.0, took - rest) / sent;  // If the rest came before or after the link's part.
  const double most = count > 1 ? took / sent : least;     // If the rest was done meanwhile.
  return least > 1 ? least : std::min(most, 1.0);
}

std::unique_ptr<ExchangeWatch> watch_by_clock(std::function<double()> now) {
  return std::make_unique<ClockWatch>(std::move(now));
}

std::unique_ptr<ExchangeWatch> watch_streams(at::Device device) { return std::make_unique<StreamWatch>(device); }

}  // namespace narrowcast::hooks

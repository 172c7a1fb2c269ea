#include "ops/comm/connections/meeting/reports.h"

#include <ATen/ops/zeros.h>
#include <c10/util/StringUtil.h>

#include <algorithm>
#include <array>
#include <cstdint>
#include <cstring>
#include <exception>
#include <mutex>
#include <optional>
#include <string_view>
#include <thread>
#include <torch/csrc/distributed/c10d/Backend.hpp>
#include <torch/csrc/distributed/c10d/Work.hpp>
#include <utility>
#include <vector>

#include "ops/common/backend_errors.h"
#include "ops/common/error_message.h"
#include "ops/common/text.h"

namespace narrowcast::connections {
namespace {

using BackendPtr = c10::intrusive_ptr<c10d::Backend>;

constexpr int kTag = 0x4DFFFFE0;  // Below the tags of PairWatch.

struct Failure {
  int64_t rank = 0;
  std::string why;
};

// The wire form of a report: a failure, or kSuccess.
struct Report {
  static constexpr int64_t kSuccess = -1;
  int64_t rank = kSuccess;
  std::array<char, 504> why = {};
};

at::Tensor to_message(const std::optional<Failure>& failure) {
  Report report;
  if (failure) {
    report.rank = failure->rank;
    failure->why.copy(report.why.data(), report.why.size());
  }
  at::Tensor message = at::zeros({sizeof(Report)}, at::kByte);
  std::memcpy(message.mutable_data_ptr(), &report, sizeof(Report));
  return message;
}

std::optional<Failure> from_message(const at::Tensor& message) {
  Report report;
  std::memcpy(&report, message.const_data_ptr(), sizeof(Report));
  if (report.rank == Report::kSuccess) return std::nullopt;
  const auto size = std::ranges::find(report.why, '\0') - report.why.begin();
  return Failure{report.rank, printable(std::string_view(report.why.data(), static_cast<size_t>(size)))};
}

class Together {
 public:
  Together(BackendPtr backend, const std::function<void()>& act, const std::function<void()>& stop)
      : backend_(std::move(backend)), act_(act), stop_(stop) {
    for_each_peer([this](int peer) {
      received_.push_back(to_message(std::nullopt));
      std::vector<at::Tensor> tensors{received_.back()};
      receives_.push_back(backend_->recv(tensors, peer, kTag));
    });
  }

  // Returns the failure of the lowest rank.
  std::optional<Failure> run() {
    std::thread thread([this] { act_and_report(); });
    size_t next = 0;
    for_each_peer([&](int peer) {
      const size_t place = next++;
      try {
        receives_[place]->wait();
        if (auto failure = from_message(received_[place])) learn(std::move(*failure));
      } catch (const std::exception& error) {
        learn({peer, error_message(error)});
      }
    });
    thread.join();
    return lowest_;
  }

 private:
  template <class Body>
  void for_each_peer(const Body& body) const {
    for (int distance = 1; distance < backend_->getSize(); ++distance) {
      body((backend_->getRank() + distance) % backend_->getSize());
    }
  }

  void act_and_report() {
    try {
      act_();
    } catch (const std::exception& error) {
      const std::lock_guard<std::mutex> lock(mutex_);
      if (!first_) keep({backend_->getRank(), printable(error_message(error))});
      own_ = first_;
    }
    std::vector<c10::intrusive_ptr<c10d::Work>> sends;
    for_each_peer([&](int peer) {
      try {
        std::vector<at::Tensor> tensors{to_message(own_)};
        sends.push_back(backend_->send(tensors, peer, kTag));
      } catch (const std::exception&) {
        // The peer has ended, which is noticed when its report is waited for.
      }
    });
    for (const auto& send : sends) {
      try {
        send->wait();
      } catch (const std::exception&) {
      }
    }
  }

  void learn(Failure failure) {
    {
      const std::lock_guard<std::mutex> lock(mutex_);
      keep(std::move(failure));
    }
    stop_();
  }

  // The caller holds the mutex.
  void keep(Failure failure) {
    if (!first_) first_ = failure;
    if (!lowest_ || failure.rank < lowest_->rank) lowest_ = std::move(failure);
  }

  const BackendPtr backend_;
  const std::function<void()>& act_;
  const std::function<void()>& stop_;
  std::vector<at::Tensor> received_;
  std::vector<c10::intrusive_ptr<c10d::Work>> receives_;
  std::mutex mutex_;               // Guards first_ and lowest_.
  std::optional<Failure> first_;   // The first that this rank has noticed, its own or another one's.
  std::optional<Failure> lowest_;  // The failure of the lowest rank.
  std::optional<Failure> own_;     // This rank's report. Used by the thread only.
};

}  // namespace

void act_together(const c10::intrusive_ptr<c10d::ProcessGroup>& group, const std::string& call,
                  const std::function<void()>& act, const std::function<void()>& stop) {
  const int64_t rank = group->getRank();
  const auto failure = with_backend_errors(
      rank, call, [&] { return Together(group->getBackend(c10::DeviceType::CPU), act, stop).run(); });
  if (failure) throw_backend_error(rank, call, c10::str("rank ", failure->rank, ": ", failure->why));
}

}  // namespace narrowcast::connections

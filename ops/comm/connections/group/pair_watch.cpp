#include "ops/comm/connections/group/pair_watch.h"

#include <ATen/ops/empty.h>

#include <chrono>
#include <exception>
#include <utility>

#include "ops/common/error_message.h"

namespace narrowcast::connections {
namespace {

// Below the tags of LossWatch and of engines. Nothing is sent with these tags.
constexpr int kClosingTag = 0x4DFFFFFE;
constexpr int kWatchTag = kClosingTag - kMostNetworks;

std::vector<at::Tensor> one_byte() { return {at::empty({1}, at::kByte)}; }

// Gloo's texts on the rank whose wait has timed out.
bool is_time_out(const std::string& text) {
  return text.find("Application timeout") != std::string::npos || text.find("Timed out") != std::string::npos;
}

}  // namespace

PairWatch::PairWatch(c10d::Backend& backend, const std::vector<int64_t>& peers, int networks) {
  for (const int64_t peer : peers) {
    for (int network = 0; network < networks; ++network) {
      std::vector<at::Tensor> nothing = one_byte();
      receives_.push_back({peer, backend.recv(nothing, static_cast<int>(peer), kWatchTag - network)});
    }
  }
}

// An abort ends one wait on a work: so the next wait returns at once, or throws if the pair has ended.
PairWatch::News PairWatch::look() {
  News news;
  std::erase_if(receives_, [&](const Receive& receive) {
    try {
      receive.work->abort();
      return receive.work->wait();
    } catch (const std::exception& error) {
      const std::string text = error_message(error);
      if (is_time_out(text)) {
        news.time_out = text;
      } else {
        news.left.push_back(receive.peer);
      }
      return true;
    }
  });
  return news;
}

// Gloo closes all pairs of a network when a wait for one of its messages times out.
void close_pairs(c10d::Backend& backend) {
  for (int network = 0; network < kMostNetworks; ++network) {
    for (int distance = 1; distance < backend.getSize(); ++distance) {
      try {
        std::vector<at::Tensor> nothing = one_byte();
        backend.recv(nothing, (backend.getRank() + distance) % backend.getSize(), kClosingTag - network)
            ->wait(std::chrono::milliseconds(1));
      } catch (const std::exception&) {
        // The pair is closed now, or was before.
      }
    }
  }
}

}  // namespace narrowcast::connections

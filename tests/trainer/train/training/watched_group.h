// A process group whose messages between two ranks a test sees before they are sent.
#pragma once

#include <ATen/core/Tensor.h>
#include <c10/util/intrusive_ptr.h>

#include <cstdint>
#include <functional>
#include <string>
#include <torch/csrc/distributed/c10d/Backend.hpp>
#include <torch/csrc/distributed/c10d/ProcessGroup.hpp>
#include <utility>
#include <vector>

namespace narrowcast::testing {

// Called on the sending thread. The message is not sent if it throws.
using BeforeSend = std::function<void(int64_t peer, int64_t bytes)>;
// Called once this rank has the result of an all-gather, which is lost if it throws.
using AfterGather = std::function<void()>;

// Forwards everything to another backend. (The name of the all-gather depends on the version of LibTorch; both are
// defined.)
class WatchedBackend final : public c10d::Backend {
 public:
  using WorkPtr = c10::intrusive_ptr<c10d::Work>;
  using Tensors = std::vector<at::Tensor>;

  WatchedBackend(c10::intrusive_ptr<c10d::Backend> inner, BeforeSend before_send, AfterGather after_gather)
      : Backend(inner->getRank(), inner->getSize()),
        inner_(std::move(inner)),
        before_send_(std::move(before_send)),
        after_gather_(std::move(after_gather)) {}

  const std::string getBackendName() const override { return inner_->getBackendName(); }
  c10::intrusive_ptr<Options> getBackendOptions() override { return inner_->getBackendOptions(); }

  WorkPtr broadcast(Tensors& tensors, const c10d::BroadcastOptions& options) override {
    return inner_->broadcast(tensors, options);
  }
  WorkPtr allreduce(Tensors& tensors, const c10d::AllreduceOptions& options) override {
    return inner_->allreduce(tensors, options);
  }
  WorkPtr allgather(std::vector<Tensors>& received, Tensors& sent, const c10d::AllgatherOptions& options) override {
    return watched(inner_->allgather(received, sent, options));
  }
  WorkPtr _allgather_base(at::Tensor& received, at::Tensor& sent, const c10d::AllgatherOptions& options) {
    return watched(all_gather(*inner_, received, sent, options));
  }
  WorkPtr all_gather_single(at::Tensor& received, at::Tensor& sent, const c10d::AllgatherOptions& options) {
    return watched(all_gather(*inner_, received, sent, options));
  }
  WorkPtr barrier(const c10d::BarrierOptions& options) override { return inner_->barrier(options); }

  WorkPtr send(Tensors& tensors, int peer, int tag) override {
    before_send_(peer, static_cast<int64_t>(tensors.at(0).nbytes()));
    return inner_->send(tensors, peer, tag);
  }
  WorkPtr recv(Tensors& tensors, int peer, int tag) override { return inner_->recv(tensors, peer, tag); }

 private:
  template <class Inner, class... Rest>
  static WorkPtr all_gather(Inner& inner, Rest&... rest) {
    if constexpr (requires { inner.all_gather_single(rest...); }) {
      return inner.all_gather_single(rest...);
    } else {
      return inner._allgather_base(rest...);
    }
  }

  WorkPtr watched(WorkPtr gather) const {
    if (after_gather_) {
      gather->wait();
      after_gather_();
    }
    return gather;
  }

  const c10::intrusive_ptr<c10d::Backend> inner_;
  const BeforeSend before_send_;
  const AfterGather after_gather_;
};

// The ranks of `group`, with its backend for CPU tensors.
inline c10::intrusive_ptr<c10d::ProcessGroup> watched(const c10::intrusive_ptr<c10d::ProcessGroup>& group,
                                                      BeforeSend before_send, AfterGather after_gather = {}) {
  using c10d::ProcessGroup;
  auto made = c10::make_intrusive<ProcessGroup>(group->getStore(), group->getRank(), group->getSize());
  made->setBackend(c10::DeviceType::CPU, ProcessGroup::BackendType::CUSTOM,
                   c10::make_intrusive<WatchedBackend>(group->getBackend(c10::DeviceType::CPU), std::move(before_send),
                                                       std::move(after_gather)));
  made->setDefaultBackend(ProcessGroup::BackendType::CUSTOM);
  made->setGroupName("watched");
  return made;
}

}  // namespace narrowcast::testing

// A process group that runs collectives and records their arguments.
#pragma once

#include <ATen/core/Tensor.h>
#include <c10/util/intrusive_ptr.h>

#include <cstdint>
#include <memory>
#include <torch/csrc/distributed/c10d/Backend.hpp>
#include <torch/csrc/distributed/c10d/ProcessGroup.hpp>
#include <utility>
#include <vector>

namespace narrowcast::testing {

// An all-gather or all-to-all of one tensor.
struct RecordedCollective {
  at::Tensor sent;
  at::Tensor received;
  std::vector<int64_t> parts_sent;      // By rank, the first byte of its part of `sent`; for an all-gather only 0.
  std::vector<int64_t> parts_received;  // By rank, the first byte of its part of `received`.
  bool async_op = true;
};

using CollectiveRecord = std::vector<RecordedCollective>;

// Forwards collectives to another backend. A collective without async_op returns no work, as in NCCL's backend. (The
// names of the virtual functions depend on the version of LibTorch; both are defined.)
class RecordingBackend final : public c10d::Backend {
 public:
  RecordingBackend(c10::intrusive_ptr<c10d::Backend> inner, std::shared_ptr<CollectiveRecord> record)
      : Backend(inner->getRank(), inner->getSize()), inner_(std::move(inner)), record_(std::move(record)) {}

  c10::intrusive_ptr<c10d::Work> _allgather_base(at::Tensor& received, at::Tensor& sent,
                                                 const c10d::AllgatherOptions& options) {
    const int64_t bytes = static_cast<int64_t>(sent.nbytes());
    record_->push_back(
        {sent, received, {0}, begins(std::vector<int64_t>(static_cast<size_t>(getSize()), bytes)), options.asyncOp});
    return work_of(options.asyncOp, all_gather(*inner_, received, sent, options));
  }
  c10::intrusive_ptr<c10d::Work> all_gather_single(at::Tensor& received, at::Tensor& sent,
                                                   const c10d::AllgatherOptions& options) {
    return _allgather_base(received, sent, options);
  }

  c10::intrusive_ptr<c10d::Work> alltoall_base(at::Tensor& received, at::Tensor& sent, std::vector<int64_t>& receives,
                                               std::vector<int64_t>& sends, const c10d::AllToAllOptions& options) {
    record_->push_back(
        {sent, received, begins(sends, sent.element_size()), begins(receives, sent.element_size()), options.asyncOp});
    return work_of(options.asyncOp, all_to_all(*inner_, received, sent, receives, sends, options));
  }
  c10::intrusive_ptr<c10d::Work> all_to_all_single(at::Tensor& received, at::Tensor& sent,
                                                   std::vector<int64_t>& receives, std::vector<int64_t>& sends,
                                                   const c10d::AllToAllOptions& options) {
    return alltoall_base(received, sent, receives, sends, options);
  }

 private:
  static c10::intrusive_ptr<c10d::Work> work_of(bool async_op, c10::intrusive_ptr<c10d::Work> work) {
    if (async_op) {
      return work;
    }
    work->wait();
    return {};
  }

  template <class Inner, class... Rest>
  static c10::intrusive_ptr<c10d::Work> all_gather(Inner& inner, Rest&... rest) {
    if constexpr (requires { inner.all_gather_single(rest...); }) {
      return inner.all_gather_single(rest...);
    } else {
      return inner._allgather_base(rest...);
    }
  }
  template <class Inner, class... Rest>
  static c10::intrusive_ptr<c10d::Work> all_to_all(Inner& inner, Rest&... rest) {
    if constexpr (requires { inner.all_to_all_single(rest...); }) {
      return inner.all_to_all_single(rest...);
    } else {
      return inner.alltoall_base(rest...);
    }
  }

  static std::vector<int64_t> begins(std::vector<int64_t> sizes, int64_t element_bytes = 1) {
    int64_t begin = 0;
    for (int64_t& size : sizes) {
      begin += std::exchange(size, begin) * element_bytes;
    }
    return sizes;
  }

  const c10::intrusive_ptr<c10d::Backend> inner_;
  const std::shared_ptr<CollectiveRecord> record_;
};

// The ranks of `group`, whose CPU tensors are sent as in `group`. This rank's calls are added to `record`.
inline c10::intrusive_ptr<c10d::ProcessGroup> recorded(const c10::intrusive_ptr<c10d::ProcessGroup>& group,
                                                       const std::shared_ptr<CollectiveRecord>& record) {
  using c10d::ProcessGroup;
  auto made = c10::make_intrusive<ProcessGroup>(group->getStore(), group->getRank(), group->getSize());
  made->setBackend(c10::DeviceType::CPU, ProcessGroup::BackendType::CUSTOM,
                   c10::make_intrusive<RecordingBackend>(group->getBackend(c10::DeviceType::CPU), record));
  made->setDefaultBackend(ProcessGroup::BackendType::CUSTOM);
  made->setGroupName("recorded");
  return made;
}

}  // namespace narrowcast::testing

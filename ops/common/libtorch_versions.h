// Wrappers for the differences between the versions of LibTorch that narrowcast is compiled with, 2.11 to 2.15. Each
// function uses the API that the installed LibTorch has, whatever its version number. It prefers the newer API, since
// the older one is deprecated once the newer one exists.
#pragma once

#include <ATen/core/Tensor.h>
#include <c10/util/intrusive_ptr.h>

#include <cstdint>
#include <memory>
#include <torch/csrc/distributed/c10d/Types.hpp>
#include <type_traits>
#include <utility>
#include <vector>

namespace narrowcast::libtorch {

// Gathers every rank's `own`, one after the other, into `all` of every rank of a c10d::ProcessGroup. Returns the
// c10d::Work.
template <class Group>
auto all_gather_single(const c10::intrusive_ptr<Group>& group, at::Tensor& all, at::Tensor& own) {
  if constexpr (requires { group->all_gather_single(all, own); }) {
    return group->all_gather_single(all, own);
  } else {
    return group->_allgather_base(all, own);
  }
}

// Receives receives[r] elements from each rank r into `received` and sends it sends[r] elements of `sent`. Returns the
// c10d::Work.
template <class Group>
auto all_to_all_single(const c10::intrusive_ptr<Group>& group, at::Tensor& received, at::Tensor& sent,
                       std::vector<int64_t>& receives, std::vector<int64_t>& sends) {
  if constexpr (requires { group->all_to_all_single(received, sent, receives, sends); }) {
    return group->all_to_all_single(received, sent, receives, sends);
  } else {
    return group->alltoall_base(received, sent, receives, sends);
  }
}

// Work is null if the backend has enqueued everything on the current stream (NCCL's, from LibTorch 2.8 on).
template <class Work>
void wait_if_any(const c10::intrusive_ptr<Work>& work) {
  if (work.defined()) {
    work->wait();
  }
}

// The two collectives for callers that keep the order on a stream themselves. They are enqueued on the current stream
// of the tensors' device. A separate stream of the group would first wait for that stream and then be waited for. On
// the CPU these functions wait.
template <class Group>
void all_gather_on_stream(const c10::intrusive_ptr<Group>& group, at::Tensor& all, at::Tensor& own) {
  c10d::AllgatherOptions options;
  options.asyncOp = false;
  if constexpr (requires { group->all_gather_single(all, own, options); }) {
    wait_if_any(group->all_gather_single(all, own, options));
  } else {
    wait_if_any(group->_allgather_base(all, own, options));
  }
}

template <class Group>
void all_to_all_on_stream(const c10::intrusive_ptr<Group>& group, at::Tensor& received, at::Tensor& sent,
                          std::vector<int64_t>& receives, std::vector<int64_t>& sends) {
  c10d::AllToAllOptions options;
  options.asyncOp = false;
  if constexpr (requires { group->all_to_all_single(received, sent, receives, sends, options); }) {
    wait_if_any(group->all_to_all_single(received, sent, receives, sends, options));
  } else {
    wait_if_any(group->alltoall_base(received, sent, receives, sends, options));
  }
}

// Makes a node of the autograd graph, owned as the graph's edges own it: by a c10::intrusive_ptr, or by a
// std::shared_ptr whose deleter frees long graphs without recursion.
template <class Node, class... Arguments>
auto make_node(Arguments&&... arguments) {
  if constexpr (std::is_base_of_v<c10::intrusive_ptr_target, Node>) {
    return c10::make_intrusive<Node>(std::forward<Arguments>(arguments)...);
  } else {
    auto node = std::make_unique<Node>(std::forward<Arguments>(arguments)...);
    return std::shared_ptr<Node>(node.release(), [](auto* unused) { deleteNode(unused); });
  }
}

}  // namespace narrowcast::libtorch

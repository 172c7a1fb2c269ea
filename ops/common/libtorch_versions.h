// What differs between the versions of LibTorch that narrowcast is compiled with, 2.11 to 2.15, and the one name that
// the rest of narrowcast has for it. Each function takes what the LibTorch at hand has, whatever its number: the newer
// name where it is there, since the older one is then deprecated.
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

// Every rank's `own`, one after the other, into `all` of every rank of a c10d::ProcessGroup. Returns its c10d::Work.
template <class Group>
auto all_gather_single(const c10::intrusive_ptr<Group>& group, at::Tensor& all, at::Tensor& own) {
  if constexpr (requires { group->all_gather_single(all, own); }) {
    return group->all_gather_single(all, own);
  } else {
    return group->_allgather_base(all, own);
  }
}

// receives[r] elements of each rank r into `received`, sends[r] elements of `sent` to it. Returns the c10d::Work.
template <class Group>
auto all_to_all_single(const c10::intrusive_ptr<Group>& group, at::Tensor& received, at::Tensor& sent,
                       std::vector<int64_t>& receives, std::vector<int64_t>& sends) {
  if constexpr (requires { group->all_to_all_single(received, sent, receives, sends); }) {
    return group->all_to_all_single(received, sent, receives, sends);
  } else {
    return group->alltoall_base(received, sent, receives, sends);
  }
}

// A backend that has enqueued all on the current stream has no Work to give (NCCL's, from LibTorch 2.8 on).
template <class Work>
void wait_if_any(const c10::intrusive_ptr<Work>& work) {
  if (work.defined()) {
    work->wait();
  }
}

// The same two for who keeps the order on a stream himself: enqueued on the current one of the tensors' device, not on
// one of the group's own, which would wait for it and then be waited for. On the CPU they wait.
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

// A node of the autograd graph, owned as its edges own it: by a c10::intrusive_ptr, or a std::shared_ptr whose deleter
// frees long graphs without recursion.
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

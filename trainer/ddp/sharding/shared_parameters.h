// Parameters that lie once in memory of the node, and are mapped by all its ranks (ShardOptions::share_parameters).
#pragma once

#include <ATen/core/Tensor.h>

#include <cstddef>
#include <cstdint>
#include <exception>
#include <memory>
#include <string>
#include <vector>

#include <narrowcast/process_group.h>
#include "ops/comm/node/find_nodes.h"
#include "trainer/ddp/sharding/node_exchange.h"
#include "trainer/ddp/shards/shards.h"

namespace narrowcast::sharding {

// Replaces the memory of the parameters' storages. The tensors remain the same objects, and so do their views. The
// storages keep the mapping, also after the end of this object.
//
// Between two steps the ranks of a node only read the parameters. In a step each rank writes its shard:
//   wait_for_readers    no rank reads any more: each has come to its step
//   (the optimizer)     a rank writes its shard, and reads nothing else
//   wait_for_writers    all shards are written: ranks may read again
class SharedParameters {
 public:
  // A collective. `parameters`: float32, on the CPU, without holes, with the same bits on all ranks of a node. `own`:
  // this rank's shard. Throws c10::ValueError, on all ranks and before anything is changed,
  //   - for a parameter that shares its storage with other data, or differs between ranks of a node;
  //   - if the memory cannot be had. The error names the bytes.
  // Throws c10::DistBackendError if a peer fails.
  SharedParameters(const ProcessGroupPtr& group, std::shared_ptr<const node::FoundNodes> nodes,
                   std::vector<at::Tensor> parameters, const Shard& own);

  // Both are collectives. If a rank fails, all ranks of its node do: with c10::DistBackendError, and the rank itself
  // with its own error.
  // Fails with c10::ValueError if a parameter was moved elsewhere since, as by Module::to. Nothing is written then.
  void wait_for_readers(NodeExchange& exchange) const;
  // `failure`: why this rank has not written its shard. Null if it has.
  static void wait_for_writers(NodeExchange& exchange, const std::exception_ptr& failure);

 private:
  const float* place_of(size_t parameter) const;
  void check_places() const;

  const std::vector<at::Tensor> parameters_;
  const std::vector<int64_t> offsets_;  // The parameters' places in the memory, in bytes.
  std::shared_ptr<std::byte> memory_;
};

// Whether the tensor lies in such memory. Another rank may write it, and what this rank writes is seen by others.
bool is_shared(const at::Tensor& tensor);

// Throws c10::ValueError that `user` cannot change a tensor called `name`, if it lies in such memory.
void check_is_not_shared(const at::Tensor& tensor, const std::string& user, const std::string& name);

}  // namespace narrowcast::sharding

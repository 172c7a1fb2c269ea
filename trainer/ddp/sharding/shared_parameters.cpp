#include "trainer/ddp/sharding/shared_parameters.h"

#include <c10/core/Allocator.h>
#include <c10/core/Storage.h>
#include <c10/util/Exception.h>
#include <c10/util/StringUtil.h>
#include <malloc.h>

#include <algorithm>
#include <cstring>
#include <functional>
#include <mutex>
#include <unordered_set>
#include <utility>

#include <narrowcast/network_errors.h>
#include "ops/collectives/all_gather/node_share.h"
#include "ops/comm/groups/agree.h"

namespace narrowcast::sharding {
namespace {

constexpr const char* kCall = "share_parameters";
constexpr int64_t kAlignment = 64;  // In bytes, as that of LibTorch's allocator: kernels take the same paths.
constexpr auto kFloat = static_cast<int64_t>(sizeof(float));

using Memory = std::shared_ptr<std::byte>;

// To the system. Where another allocator serves the process (a sanitizer's, a preloaded one), this call is the first to
// use that of glibc, and initialises it, which must not happen in two threads at once.
void return_free_memory() {
  static std::mutex mutex;
  const std::lock_guard lock(mutex);
  ::malloc_trim(0);
}

std::string describe(const at::Tensor& parameter, size_t index) {
  return c10::str("parameter ", index, " of the optimizer, of sizes ", parameter.sizes(), ",");
}

// A storage as a whole becomes shared, with all its views.
void check_storages(const std::vector<at::Tensor>& parameters) {
  std::unordered_set<const c10::StorageImpl*> seen;
  for (size_t i = 0; i < parameters.size(); ++i) {
    const c10::Storage& storage = parameters[i].storage();
    const bool is_alone = static_cast<int64_t>(storage.nbytes()) == parameters[i].numel() * kFloat &&
                          seen.insert(storage.unsafeGetStorageImpl()).second;
    TORCH_CHECK_VALUE(is_alone, describe(parameters[i], i), " lies in a storage of ", storage.nbytes(),
                      " bytes with other data; a parameter that ranks share needs a storage of its own, as clone() "
                      "makes it");
  }
}

// The offsets of the parameters, and the size of all.
std::vector<int64_t> offsets_of(const std::vector<at::Tensor>& parameters) {
  std::vector<int64_t> offsets = {0};
  for (const at::Tensor& parameter : parameters) {
    const int64_t bytes = parameter.numel() * kFloat;
    offsets.push_back(offsets.back() + (bytes + kAlignment - 1) / kAlignment * kAlignment);
  }
  return offsets;
}

// A collective: all ranks throw the error of the first check that throws c10::ValueError.
void check_together(const ProcessGroupPtr& group, const std::function<void()>& check) {
  collectives::agree(group, {.call = kCall, .refusal = collectives::refusal_of(check)});
}

// A storage's deleter. Its address marks shared storages.
void drop_mapping(void* owner) { const std::unique_ptr<Memory> dropped(static_cast<Memory*>(owner)); }

c10::DataPtr part_of(const Memory& memory, int64_t offset) {
  auto owner = std::make_unique<Memory>(memory);
  void* const data = memory.get() + offset;
  return {data, owner.release(), &drop_mapping, at::kCPU};
}

}  // namespace

SharedParameters::SharedParameters(const ProcessGroupPtr& group, std::shared_ptr<const node::FoundNodes> nodes,
                                   std::vector<at::Tensor> parameters, const Shard& own)
    : parameters_(std::move(parameters)), offsets_(offsets_of(parameters_)) {
  check_together(group, [&] { check_storages(parameters_); });
  collectives::NodeShareOptions options{
      .name = kCall, .nodes = std::move(nodes), .bytes = std::max(offsets_.back(), kAlignment)};
  for (const Piece& piece : own) {
    options.own.push_back({.begin = offsets_[piece.parameter] + piece.begin * kFloat, .size = piece.numel * kFloat});
  }
  memory_ = with_network_errors(group->getRank(), kCall, [&] { return collectives::share_on_node(group, options); });
  for (size_t i = 0; i < own.size(); ++i) {
    if (own[i].numel == 0) continue;  // It has no memory.
    const float* const from = parameters_[own[i].parameter].const_data_ptr<float>() + own[i].begin;
    std::memcpy(memory_.get() + options.own[i].begin, from, options.own[i].size);
  }
  check_together(group, [] {});  // All shards are written.
  check_together(group, [this] {
    for (size_t i = 0; i < parameters_.size(); ++i) {
      const at::Tensor& parameter = parameters_[i];
      const bool is_equal = parameter.numel() == 0 || std::memcmp(parameter.const_data_ptr<float>(), place_of(i),
                                                                  parameter.numel() * kFloat) == 0;
      TORCH_CHECK_VALUE(is_equal, describe(parameter, i), " is not equal on the ranks of a node");
    }
  });
  std::vector<c10::DataPtr> places;
  for (size_t i = 0; i < parameters_.size(); ++i) {
    places.push_back(part_of(memory_, offsets_[i]));
  }
  for (size_t i = 0; i < parameters_.size(); ++i) {
    c10::StorageImpl* const storage = parameters_[i].storage().unsafeGetStorageImpl();
    storage->set_data_ptr(std::move(places[i]));
    storage->set_resizable(false);  // A resize would move it elsewhere.
  }
  return_free_memory();  // The allocator would keep much of the memory in which the parameters were.
}

const float* SharedParameters::place_of(size_t parameter) const {
  return reinterpret_cast<const float*>(memory_.get() + offsets_[parameter]);
}

void SharedParameters::check_places() const {
  for (size_t i = 0; i < parameters_.size(); ++i) {
    TORCH_CHECK_VALUE(parameters_[i].storage().data() == place_of(i), describe(parameters_[i], i),
                      " no longer lies in the memory that the node's ranks share: it must be neither moved nor "
                      "replaced");
  }
}

void SharedParameters::wait_for_readers(NodeExchange& exchange) const {
  std::exception_ptr failure;
  try {
    check_places();
  } catch (...) {
    failure = std::current_exception();
  }
  exchange.meet("last reads of the parameters before a step", failure);
}

void SharedParameters::wait_for_writers(NodeExchange& exchange, const std::exception_ptr& failure) {
  exchange.meet("steps of the shards", failure);
}

bool is_shared(const at::Tensor& tensor) {
  return tensor.has_storage() && tensor.storage().data_ptr().get_deleter() == &drop_mapping;
}

void check_is_not_shared(const at::Tensor& tensor, const std::string& user, const std::string& name) {
  TORCH_CHECK_VALUE(!is_shared(tensor), user, " cannot change ", name, " of sizes ", tensor.sizes(),
                    ", which lies in memory that the node's ranks share (ShardOptions::share_parameters)");
}

}  // namespace narrowcast::sharding

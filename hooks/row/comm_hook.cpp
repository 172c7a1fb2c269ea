#include <narrowcast/comm_hook.h>

#include <c10/util/Exception.h>

#include <algorithm>
#include <cstddef>

namespace narrowcast::hooks {
namespace {

constexpr const char* kPayloadBytesSent = "payload_bytes_sent";

}  // namespace

HookState part_of(const HookState& state, const std::string& prefix) {
  HookState part;
  for (auto entry = state.lower_bound(prefix); entry != state.end() && entry->first.starts_with(prefix); ++entry) {
    part.emplace(entry->first.substr(prefix.size()), entry->second);
  }
  return part;
}

FormerRanks part_of(const FormerRanks& saved, const std::string& prefix) {
  FormerRanks part{.world_size = saved.world_size, .states = {}, .first = part_of(saved.first, prefix)};
  for (const HookState& state : saved.states) {
    part.states.push_back(part_of(state, prefix));
  }
  return part;
}

std::optional<double> CommHook::compression() const {
  int64_t numel = 0;
  ExchangedBytes sum;
  for (const CountedBucket& bucket : buckets_) {
    numel += bucket.numel;
    sum.payload += bucket.bytes.payload;
    sum.message += bucket.bytes.message;
  }
  if (sum.payload == 0 || sum.message == 0) {
    return std::nullopt;
  }
  return static_cast<double>(numel * static_cast<int64_t>(sizeof(float))) / static_cast<double>(sum.message);
}

// The Reducer may have rebuilt its buckets, so entries after the last bucket are removed.
void CommHook::count_exchange(const c10d::GradBucket& bucket, const ExchangedBytes& bytes) {
  count_payload(bytes.payload);
  const size_t index = bucket.getIndex();
  buckets_.resize(bucket.isLast() ? index + 1 : std::max(buckets_.size(), index + 1));
  buckets_[index] = {bucket.getBuffer().numel(), bytes};
}

c10::intrusive_ptr<c10::ivalue::Future> CommHook::run_inside(CommHook& inner, c10d::GradBucket& bucket) {
  const int64_t sent_before = inner.payload_bytes_sent();
  auto future = inner.runHook(bucket);
  const size_t index = bucket.getIndex();
  const int64_t message = index < inner.buckets_.size() ? inner.buckets_[index].bytes.message : 0;
  count_exchange(bucket, {.payload = inner.payload_bytes_sent() - sent_before, .message = message});
  return future;
}

HookState CommHook::state(const std::vector<NamedParameter>& /*parameters*/) const {
  return {{kPayloadBytesSent, int_tensor(payload_bytes_sent())}};
}

void CommHook::load_state(const FormerRanks& saved, const std::vector<NamedParameter>& /*parameters*/) {
  payload_bytes_sent_.store(int_of(saved.own(), kPayloadBytesSent), std::memory_order_relaxed);
}

at::Tensor CommHook::parseHookResult(const c10::IValue& result) {
  if (result.isTensor()) {
    return result.toTensor();
  }
  TORCH_CHECK(result.isTensorList() && result.toTensorVector().size() == 1, "hook ", name(),
              ": its future must hold one tensor, but holds ", result.tagKind());
  return result.toTensorVector()[0];
}

}  // namespace narrowcast::hooks

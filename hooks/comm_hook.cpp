#include <narrowcast/comm_hook.h>

#include <c10/util/Exception.h>

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

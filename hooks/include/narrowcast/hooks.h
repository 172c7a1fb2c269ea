// Hooks by name.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include <narrowcast/comm_hook.h>
#include <narrowcast/export.h>
#include <narrowcast/hook_options.h>

namespace narrowcast::hooks {

// The names create_comm_hook takes, "none" first, in the order of the documentation.
NARROWCAST_EXPORT std::vector<std::string> comm_hook_names();

// c10::ValueError for an unknown name (it lists the known ones), for options that have no effect with the hook or
// contradict each other, and for a channel size, node size, group size or another option out of range. The process
// group is not looked at.
NARROWCAST_EXPORT void check_hook_options(const std::string& name, const HookOptions& options);

// The same for options one by one.
inline void check_comm_hook(const std::string& name, const WireOptions& wire,
                            std::optional<int64_t> channel_size = std::nullopt, const LocalOptions& local = {},
                            const PowerSgdOptions& power_sgd = {}) {
  check_hook_options(
      name, {.process_group = {}, .wire = wire, .channel_size = channel_size, .local = local, .power_sgd = power_sgd});
}

// The elements of a channel with that hook, given what was chosen; nothing for hooks without channels. c10::ValueError
// for an unknown name, here and below.
NARROWCAST_EXPORT std::optional<int64_t> channel_size_of(const std::string& hook,
                                                         std::optional<int64_t> channel_size = std::nullopt);

// Whether the hook of that name has channels, whose size can be chosen.
inline bool takes_channel_size(const std::string& hook) { return channel_size_of(hook).has_value(); }

// The format in which that hook sends; nothing for hooks that are not of wire formats.
NARROWCAST_EXPORT std::optional<WireFormat> wire_format_of(const std::string& hook, const WireOptions& wire = {});

// Whether WireOptions have an effect on that hook: on those of wire formats, and on the one that chooses between hooks.
NARROWCAST_EXPORT bool takes_wire_options(const std::string& hook);

// The rank of that hook's approximation, given what was chosen; nothing for hooks that are not of PowerSGD.
NARROWCAST_EXPORT std::optional<int64_t> power_sgd_rank_of(const std::string& hook,
                                                           const PowerSgdOptions& options = {});

// The options with what they leave to that hook filled in.
NARROWCAST_EXPORT HookOptions effective_options(const std::string& hook, HookOptions options);

// The hook of that name; null for "none", with which the Reducer averages by itself. All ranks create
// the same hooks with the same options; those that take wire options it is a collective, in which ranks find out which
// share a node and, where something depends on it, what sending costs. c10::ValueError as above, for a process group
// that is missing or that has no backend for what the hook needs, and on all ranks for levels that there cannot be.
// c10::DistBackendError if a peer fails.
NARROWCAST_EXPORT std::unique_ptr<CommHook> create_comm_hook(const std::string& name, const HookOptions& options);

// A hook around `hook`, as PyTorch's fp16_compress_wrapper and bf16_compress_wrapper: it rounds each bucket to
// `format`, "fp16" or "bf16", gives it to `hook`, and casts the result back to the bucket's dtype. All ranks wrap
// alike. State, counts and answers are those of `hook`; the name is "FORMAT(NAME)". The error feedback of `hook` does
// not have what the format rounds off. c10::ValueError for null and for other formats.
NARROWCAST_EXPORT std::unique_ptr<CommHook> wrap_in_format(std::unique_ptr<CommHook> hook, const std::string& format);

}  // namespace narrowcast::hooks

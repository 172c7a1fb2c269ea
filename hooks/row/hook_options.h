// Functions on options for hooks and the trainer, beside <narrowcast/hook_options.h>.
#pragma once

#include <cstdint>
#include <functional>
#include <optional>
#include <string>
#include <string_view>

#include <narrowcast/hook_options.h>

namespace narrowcast::hooks {

// Keeps the options of the kinds for which keeps() is true, and resets the others to their defaults.
WireOptions with_only(WireOptions wire, const std::function<bool(OptionKind)>& keeps);

// LocalOptions::group_size as named_options prints it and users write it: "node" for no value, "none" for 1, else the
// number.
std::string local_group_text(const std::optional<int64_t>& size);

// The inverse; it also takes the number 1. The range is checked when the hook is made. Returns false for any other
// text; `size` is then unspecified.
bool parse_local_group(std::string_view text, std::optional<int64_t>& size);

// WireOptions::connections as named_options prints it and users write it: "auto", or the number.
std::string connections_text(const std::optional<int64_t>& count);

// The inverse. The range is checked when the hook is made. Returns false for any other text; `count` is then
// unspecified.
bool parse_connections(std::string_view text, std::optional<int64_t>& count);

// WireOptions::auto_bits with its default.
inline int64_t auto_bits_of(const WireOptions& wire) { return wire.auto_bits.value_or(kDefaultAutoBits); }

// Whether an option of that kind differs from its default.
bool is_set(const WireOptions& wire, OptionKind kind);

// c10::ValueError if link_gbit or link_us is out of range.
void check_link(const WireOptions& wire);

}  // namespace narrowcast::hooks

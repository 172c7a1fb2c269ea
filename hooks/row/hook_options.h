// What hooks and the trainer ask of options beside what <narrowcast/hook_options.h> says.
#pragma once

#include <cstdint>
#include <functional>
#include <optional>
#include <string>
#include <string_view>

#include <narrowcast/hook_options.h>

namespace narrowcast::hooks {

// The options of the kinds for which keeps() is true; the others are as they are by themselves.
WireOptions with_only(WireOptions wire, const std::function<bool(OptionKind)>& keeps);

// LocalOptions::group_size as named_options tells it and users write it: "node" without a value, "none" for 1, else the
// number.
std::string local_group_text(const std::optional<int64_t>& size);

// The inverse, which also takes the number 1; whether the size is in range is for who makes the hook to say. False for
// another text, and then `size` means nothing.
bool parse_local_group(std::string_view text, std::optional<int64_t>& size);

// WireOptions::auto_bits with its default.
inline int64_t auto_bits_of(const WireOptions& wire) { return wire.auto_bits.value_or(kDefaultAutoBits); }

// Whether an option of that kind is not as it is by itself.
bool is_set(const WireOptions& wire, OptionKind kind);

// c10::ValueError for a given link out of range.
void check_link(const WireOptions& wire);

}  // namespace narrowcast::hooks

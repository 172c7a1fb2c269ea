#include "hooks/row/hook_options.h"

#include <c10/util/Exception.h>
#include <c10/util/StringUtil.h>

#include <algorithm>
#include <array>
#include <charconv>
#include <system_error>
#include <type_traits>
#include <utility>

#include <narrowcast/wire_format.h>
#include "hooks/row/option_values.h"

namespace narrowcast::hooks {
namespace {

// Reads the name of an enumerator. Null for other types, whose options are values of the member's type.
template <class T>
constexpr T (*kParse)(std::string_view) = nullptr;
template <>
constexpr auto kParse<Levels> = &parse_levels;
template <>
constexpr auto kParse<PowerSgdMemory> = &parse_power_sgd_memory;
template <>
constexpr auto kParse<WireFormat> = &parse_wire_format;

template <class T>
struct Unwrapped {
  using Type = T;
};
template <class T>
struct Unwrapped<std::optional<T>> {
  using Type = T;
};

// An option whose value is that of its member; enumerators are texts.
struct AsItIs {
  template <class T>
  static OptionValue value(const T& member) {
    return value_of(member);
  }

  template <class T>
  static void set(const std::string& name, const OptionValue& value, T& member) {
    using Value = typename Unwrapped<T>::Type;
    if constexpr (std::is_enum_v<Value>) {
      read_option(name, value, member, kParse<Value>);
    } else {
      read_option(name, value, member);
    }
  }
};

// WireOptions::stochastic_rounding_seed: the seed, or false.
struct AsSeed {
  static OptionValue value(const std::optional<int64_t>& seed) {
    return seed ? OptionValue(c10::str("seed ", *seed)) : OptionValue(false);
  }
  static void set(const std::string& name, const OptionValue& value, std::optional<int64_t>& seed) {
    if (value == OptionValue(false)) {
      seed.reset();
      return;
    }
    if (!std::holds_alternative<int64_t>(value)) refuse_type(name, "int (the seed) or False", value);
    read_option(name, value, seed);
  }
};

// The texts of LocalOptions::group_size for no value (the ranks of a node) and for 1.
constexpr std::string_view kGroupOfNode = "node";
constexpr std::string_view kGroupOfOne = "none";

// LocalOptions::group_size: a number or one of these texts.
struct AsGroup {
  static OptionValue value(const std::optional<int64_t>& size) {
    if (!size) {
      return std::string(kGroupOfNode);
    }
    return size == 1 ? OptionValue(std::string(kGroupOfOne)) : OptionValue(*size);
  }
  static void set(const std::string& name, const OptionValue& value, std::optional<int64_t>& size) {
    if (const auto* const text = std::get_if<std::string>(&value)) {
      std::optional<int64_t> read;
      TORCH_CHECK_VALUE(parse_local_group(*text, read), name, ": must be a number, \"", kGroupOfNode, "\" or \"",
                        kGroupOfOne, "\", but is \"", *text, "\"");
      size = read;
      return;
    }
    if (!std::holds_alternative<int64_t>(value)) refuse_type(name, "int or str", value);
    read_option(name, value, size);
  }
};

// The text of kAutoConnections.
constexpr std::string_view kChosenByRanks = "auto";

// WireOptions::connections: a number or this text.
struct AsConnections {
  static OptionValue value(const std::optional<int64_t>& count) {
    return count == kAutoConnections ? OptionValue(std::string(kChosenByRanks)) : value_of(count);
  }
  static void set(const std::string& name, const OptionValue& value, std::optional<int64_t>& count) {
    if (const auto* const text = std::get_if<std::string>(&value)) {
      TORCH_CHECK_VALUE(*text == kChosenByRanks, name, ": must be a number or \"", kChosenByRanks, "\", but is \"",
                        *text, "\"");
      count = kAutoConnections;
      return;
    }
    if (!std::holds_alternative<int64_t>(value)) refuse_type(name, "int or str", value);
    TORCH_CHECK_VALUE(std::get<int64_t>(value) != kAutoConnections, name, ": must be a number from 1 on or \"",
                      kChosenByRanks, "\", but is ", kAutoConnections);
    read_option(name, value, count);
  }
};

// A member of a member of options.
template <auto... Members>
constexpr auto kMember = [](auto& options) -> auto& {
  return (options.*....*Members);
};
template <auto Member>
constexpr auto kOfWire = kMember<&HookOptions::wire, Member>;
template <auto Member>
constexpr auto kOfLocal = kMember<&HookOptions::local, Member>;
template <auto Member>
constexpr auto kOfPowerSgd = kMember<&HookOptions::power_sgd, Member>;

// The list of all options by name: calls visit(kind, name, member, how) for each.
template <class Visit>
void visit_options(const Visit& visit) {
  using enum OptionKind;
  visit(kFormat, "hook_format", kOfWire<&WireOptions::format>, AsItIs{});
  visit(kRounding, "stochastic_rounding", kOfWire<&WireOptions::stochastic_rounding_seed>, AsSeed{});
  visit(kErrorFeedback, "error_feedback", kOfWire<&WireOptions::error_feedback>, AsItIs{});
  visit(kExemption, "exempt_one_dimensional", kOfWire<&WireOptions::exempt_one_dimensional>, AsItIs{});
  visit(kLevels, "levels", kOfWire<&WireOptions::levels>, AsItIs{});
  visit(kLevels, "node_size", kOfWire<&WireOptions::node_size>, AsItIs{});
  visit(kLink, "link_gbit", kOfWire<&WireOptions::link_gbit>, AsItIs{});
  visit(kLink, "link_us", kOfWire<&WireOptions::link_us>, AsItIs{});
  visit(kConnections, "connections", kOfWire<&WireOptions::connections>, AsConnections{});
  visit(kChoice, "auto_bits", kOfWire<&WireOptions::auto_bits>, AsItIs{});
  visit(kChannels, "channel_size", kMember<&HookOptions::channel_size>, AsItIs{});
  visit(kLocal, "outer_warmup", kOfLocal<&LocalOptions::start>, AsItIs{});
  visit(kLocal, "local_group", kOfLocal<&LocalOptions::group_size>, AsGroup{});
  visit(kLocal, "local_hook", kOfLocal<&LocalOptions::hook>, AsItIs{});
  visit(kPowerSgd, "power_sgd_rank", kOfPowerSgd<&PowerSgdOptions::rank>, AsItIs{});
  visit(kPowerSgd, "power_sgd_start", kOfPowerSgd<&PowerSgdOptions::start>, AsItIs{});
  visit(kPowerSgdOfMatrices, "power_sgd_min_rate", kOfPowerSgd<&PowerSgdOptions::min_rate>, AsItIs{});
  visit(kPowerSgd, "power_sgd_error_feedback", kOfPowerSgd<&PowerSgdOptions::error_feedback>, AsItIs{});
  visit(kPowerSgd, "power_sgd_warm_start", kOfPowerSgd<&PowerSgdOptions::warm_start>, AsItIs{});
  visit(kPowerSgdOfMatrices, "power_sgd_epsilon", kOfPowerSgd<&PowerSgdOptions::epsilon>, AsItIs{});
  visit(kPowerSgd, "power_sgd_seed", kOfPowerSgd<&PowerSgdOptions::seed>, AsItIs{});
  visit(kPowerSgdOfMatrices, "power_sgd_batch", kOfPowerSgd<&PowerSgdOptions::batch>, AsItIs{});
  visit(kPowerSgd, "power_sgd_alternate", kOfPowerSgd<&PowerSgdOptions::alternate>, AsItIs{});
  visit(kPowerSgd, "power_sgd_memory", kOfPowerSgd<&PowerSgdOptions::memory>, AsItIs{});
  visit(kPowerSgd, "power_sgd_wire", kOfPowerSgd<&PowerSgdOptions::wire>, AsItIs{});
}

}  // namespace

std::string text_of(const OptionValue& value) {
  const auto text = [](const auto& held) -> std::string {
    using Held = std::decay_t<decltype(held)>;
    if constexpr (std::is_same_v<Held, std::monostate>) {
      return "none";
    } else if constexpr (std::is_same_v<Held, bool>) {
      return held ? "true" : "false";
    } else if constexpr (std::is_same_v<Held, double>) {
      std::array<char, 32> digits{};  // Numbers that differ have texts that differ: ranks compare these.
      const auto end = std::to_chars(digits.data(), digits.data() + digits.size(), held, std::chars_format::general);
      return {digits.data(), end.ptr};
    } else {
      return c10::str(held);
    }
  };
  return std::visit(text, value);
}

std::vector<NamedOption> named_options(const HookOptions& options) {
  static const HookOptions usual;
  std::vector<NamedOption> named;
  visit_options([&](OptionKind kind, const char* name, const auto& member, auto how) {
    named.push_back({name, kind, how.value(member(options)), member(options) != member(usual)});
  });
  return named;
}

void set_option(HookOptions& options, const std::string& name, const OptionValue& value) {
  static const HookOptions usual;
  bool found = false;
  std::string known;
  visit_options([&](OptionKind /*kind*/, const char* other, const auto& member, auto how) {
    known += (known.empty() ? "" : ", ") + std::string(other);
    if (name != other) return;
    found = true;
    set_member(value, member(options), member(usual), [&](auto& read) { how.set(name, value, read); });
  });
  TORCH_CHECK_VALUE(found, "unknown option '", name, "'; known: ", known);
}

std::string local_group_text(const std::optional<int64_t>& size) { return text_of(AsGroup::value(size)); }

bool parse_local_group(std::string_view text, std::optional<int64_t>& size) {
  if (text == kGroupOfNode) {
    size.reset();
    return true;
  }
  size = 1;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), *size);
  return text == kGroupOfOne || (error == std::errc() && end == text.data() + text.size());
}

std::string connections_text(const std::optional<int64_t>& count) { return text_of(AsConnections::value(count)); }

bool parse_connections(std::string_view text, std::optional<int64_t>& count) {
  count = kAutoConnections;
  if (text == kChosenByRanks) return true;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), *count);
  return error == std::errc() && end == text.data() + text.size() && count != kAutoConnections;
}

WireOptions with_only(WireOptions wire, const std::function<bool(OptionKind)>& keeps) {
  static const HookOptions usual;
  HookOptions options{.wire = std::move(wire)};
  visit_options([&](OptionKind kind, const char* /*name*/, const auto& member, auto /*how*/) {
    if (!keeps(kind)) member(options) = member(usual);
  });
  return std::move(options.wire);
}

bool is_set(const WireOptions& wire, OptionKind kind) {
  const std::vector<NamedOption> named = named_options({.wire = wire});
  return std::ranges::any_of(named, [=](const NamedOption& option) { return option.kind == kind && option.is_given; });
}

void check_link(const WireOptions& wire) {
  const auto check = [](const char* name, const std::optional<double>& value, double least, double most) {
    TORCH_CHECK_VALUE(!value || (*value >= least && *value <= most), name, ": must be in ", least, "..", most,
                      ", but is ", *value);
  };
  check("link_gbit", wire.link_gbit, kLeastLinkGbit, kMostLinkGbit);
  check("link_us", wire.link_us, kLeastLinkUs, kMostLinkUs);
}

}  // namespace narrowcast::hooks
